# options that would cancel each other are refused
cd "$TMPDIR" || exit 3
printf 'model: gpt2\ngpu: T4-16G\nseq: 64\nbatch: [1, 2]\n' >grid.yaml
printf 'model: gpt2\ngpu: T4-16G\nseq: 64\nbatch: 4\naccumulate: 2\n' >run.yaml
run() { memplan "$@" >out.txt; echo "$*: exit status $?"; }
fit() { run fit --gpu T4-16G --model gpt2 --no-advice "$@"; }
fit --batch 3 --max-batch
fit --seq 64 --seq-lengths 32,48
run plan --run run.yaml --tokens-per-step 4096
run plan --gpu T4-16G --model gpt2 --seq 64 --precision fp32 --precisions fp32,amp-fp16
run sweep grid.yaml --json -o rows.csv
run sweep grid.yaml --resume -o -
# what a file says is passed over by an option that asks for another
memplan fit --run run.yaml --max-batch --no-advice | grep Largest
memplan fit --run run.yaml --seq-lengths 32,48 --no-advice --json | grep -A 3 '"seq'
