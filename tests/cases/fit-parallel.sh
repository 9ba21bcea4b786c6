# data parallelism: what NCCL takes, the other outcome of timing, every rank, DeepSpeed's own file, and what is not here
fit() { memplan fit --gpu H200-141G --no-advice "$@"; }
fit --model gpt2 --data-parallel ddp --world 2 --per-rank | sed -n '/^Fits/p; /^Peaks/,/^  reserved, not/p; /^  context/,/^  device/p'
fit --model gpt2 --data-parallel fsdp2 --world 8 --per-rank | sed -n '/^Ranks/,/^Made/p'
fit --model gpt2 --data-parallel zero1 --world 4 --per-rank --json | sed -n '/"collectives": {/,/}/p; /"ranks": \[/,/\]/p'
fit --model gpt2 --data-parallel fsdp2 --world 2 --json | grep '"upper"'
# a card that only one of the outcomes fits
fit --model gpt2 --data-parallel ddp --world 2 --allocator-limit-bytes 4.05GiB >"$TMPDIR/out"
echo "exit status $?"
sed -n '3,4p' "$TMPDIR/out"
fit --model llama3.2-1b --world 8 --deepspeed tests/data/deepspeed/zero3-offload-auto.json | sed -n '1p;3p'
fit --model gpt2 --world 2 --deepspeed tests/data/deepspeed/zero3-comments.json --precision bf16 | sed -n '3p'
# what would change nothing, or is not filled in
fit --model gpt2 --world 2 --deepspeed tests/data/deepspeed/zero3-comments.json
echo "exit status $?"
fit --model gpt2 --data-parallel ddp --fsdp '{offload: true}'
echo "exit status $?"
printf 'model: gpt2\ngpu: H200-141G\nddp: {static_graph: true}\n' >"$TMPDIR/idle.yaml"
(cd "$TMPDIR" && memplan fit --run idle.yaml)
echo "exit status $?"
for key in tensor pipeline context expert; do
    fit --model gpt2 "--$key-parallel" 2
    echo "exit status $?"
done
echo '{"model": "gpt2", "gpu": "H200-141G", "tensor_parallel": 2, "world": 2}' | memplan fit --run -
echo "exit status $?"
fit --model gpt2 --data-parallel ddp --world 2048 --per-rank
echo "exit status $?"
