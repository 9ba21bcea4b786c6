# run files and models that are empty, unreadable, folders, or not what they should be
cd "$TMPDIR" || exit 3
try() {
    memplan fit "$@"
    echo "exit status $?"
}
: >empty.json
printf 'model: gpt2\ngpu: H200-141G\n---\nmodel: bert-base\n' >two.yaml
awk 'BEGIN { print "_a0: &a0 [x, x, x, x, x, x, x, x, x]"
    for (i = 1; i < 12; i++) { printf "_a%d: &a%d [", i, i; for (k = 0; k < 9; k++) printf "%s*a%d", k ? ", " : "", i - 1; print "]" } }' >aliases.yaml
printf 'model: gpt2\ngpu: H200-141G\n  seq: 3\n' >indent.yaml
printf '{"model": "gpt2", "gpu": "H200-141G", "seq": 64' >cut.json
printf '[1, 2]' >list.json
printf 'model: gpt2\ngpu: H200-141G\nbatch: [1, 2]\nprecision: {a: 1}\nseq: null\nmodell: x\n' >types.yaml
mkdir folder
for file in empty.json two.yaml aliases.yaml indent.yaml cut.json list.json types.yaml folder missing.yaml; do
    try --run "$file"
done
try --gpu H200-141G --model folder
try --gpu H200-141G --model ./missing.json
try --gpu ./folder --model gpt2
printf '{"name": "mine", "total_bytes": -1}' >gpu.json
try --gpu ./gpu.json --model gpt2
printf 'model: gpt2' | gzip | head -c 20 >cut.yaml
try --run cut.yaml
try --run /proc/self/mem
try --run empty.json --run cut.json
