# every point has its verdict and says who decided it; the same bytes for any number of threads
cat >"$TMPDIR/grid.yaml" <<'YAML'
model: gpt2-large
gpu: [T4-16G, RTX3090-24G, A100-40G, A100-80G]
batch: [1, 8, 24]
precision: [amp-fp16, fp32]
seq: 1024
where: precision != fp32 or batch < 24
YAML
cd "$TMPDIR" || exit 3
memplan sweep grid.yaml | cut -d, -f2-
memplan sweep grid.yaml -o one.jsonl --jobs 1
memplan sweep grid.yaml -o three.jsonl --jobs 3
cmp one.jsonl three.jsonl && echo same bytes
# what fit says of one of them
memplan fit --model gpt2-large --gpu RTX3090-24G --batch 8 --seq 1024 --precision amp-fp16 --no-advice --json |
    grep -E '"(fits|requested_bytes|allocated_bytes|reserved_bytes|device_used_bytes)"' | head -5
grep -c '"fits":null' one.jsonl
