# bad grids are refused with file, line and key
cd "$TMPDIR" || exit 3
try() {
    cat >grid.yaml
    memplan sweep grid.yaml
    echo "exit status $?"
}
try <<'YAML'
model: gpt2
gpu: T4-16G
batch: {from: 8, to: 4, step: 1}
seq: []
precision: [bf16, 4]
batchs: [1]
YAML
try <<'YAML'
model: gpt2
gpu: T4-16G
batch: {from: 1, to: 60000, step: 1}
seq: {from: 1, to: 60000, step: 1}
accumulate: {from: 1, to: 60000, step: 1}
pad_to: {from: 1, to: 60000, step: 1}
iterations: {from: 1, to: 9999, step: 1}
YAML
try <<'YAML'
model: gpt2
gpu: T4-16G
batch: [1, 2]
where: [batch > one, batch <]
limit: none
YAML
try <<'YAML'
model: gpt2
gpu: [T4-16G, T5-16G]
YAML
try <<'YAML'
batch: [1, 2
YAML
memplan sweep missing.yaml
memplan sweep
printf 'model: gpt2\ngpu: T4-16G\nbatch: [1, 2]\n' >grid.yaml
memplan sweep grid.yaml -o out.txt
memplan sweep grid.yaml --heatmap batch,seq
memplan sweep grid.yaml --heatmap batch,seq -o map.svg
