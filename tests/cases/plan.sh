# a plan fits when it is fed back, says what to type, and is never slower than what it tried
memplan plan --model gpt2-large --gpu RTX4090-24G --seq 1024 --tokens-per-step 16K | sed '/Tried/,$d'
back() {
    sed -n '/As a run spec/,/^$/p' | sed -e 1d -e '/^$/d' -e 's/^  //' >"$TMPDIR/plan.yaml"
    memplan fit --run "$TMPDIR/plan.yaml" --no-advice >"$TMPDIR/fit"
    echo "exit status $?"
    grep -E '^(Fits|Does not)|device used .* with' "$TMPDIR/fit"
}
memplan plan --model gpt2-large --gpu RTX4090-24G --seq 1024 --tokens-per-step 16K | back
# parts of blocks, and blocks on the host
memplan plan --model gpt-1.3b --gpu A100-40G --batch 4 --tokens-per-step 64K >"$TMPDIR/parts"
sed '/Tried/,$d' "$TMPDIR/parts"
back <"$TMPDIR/parts"
memplan plan --model gpt2 --gpu T4-16G --batch 8 --seq 512 --minimize memory >"$TMPDIR/host"
sed -n '2,3p;/To type/,/Tried/p' "$TMPDIR/host"
back <"$TMPDIR/host"
# what was given and is not the plan's to choose goes along
memplan plan --model gpt2 --gpu T4-16G --lora '{rank: 8, targets: [c_attn]}' --clip-grad-norm --used 3GiB --zero-grad keep >"$TMPDIR/given"
sed -n '/As a run spec/,/^$/p;/^  device used/p' "$TMPDIR/given"
back <"$TMPDIR/given"
memplan plan --model gpt2 --gpu H100-80G --data-parallel fsdp2 --world 4 --fsdp '{replicas: 2}' >"$TMPDIR/given"
sed -n '/As a run spec/,/^$/p;/^  device used/p' "$TMPDIR/given"
back <"$TMPDIR/given"
memplan plan --model gpt2 --gpu T4-16G --framework hf-trainer --batch 8 >"$TMPDIR/given"
sed -n '/As a run spec/,/^$/p;/^  device used/p' "$TMPDIR/given"
back <"$TMPDIR/given"
memplan plan --model gpt2 --gpu T4-16G --batch 4 --checkpoint '{every: 2}' --json | grep -E '"(schema_version|fits|recomputed_blocks)"' | head -4
memplan plan --model bert-base --gpu T4-16G --batch 4 --checkpoint '{attention: all}' --offload '{first: 2}'
memplan plan --model gpt2 --gpu T4-16G --tokens-per-step 4X
memplan plan --model gpt2 --gpu T4-16G --precisions bf16,half
# more micro-batches than can be, told before anything is tried; what was given is not called one sequence
memplan plan --model gpt2 --gpu T4-16G --tokens-per-step 400G
memplan plan --model llama3.2-1b --gpu RTX4090-24G --batch 8 --checkpoint none | head -n 2
memplan plan --model gpt2 --gpu T4-16G --seq-lengths 128,256
