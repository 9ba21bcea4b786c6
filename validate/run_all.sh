#!/bin/sh
# SPDX-License-Identifier: MIT
# Everything that validate/results holds of memplan-validate: probe, replays, training, kernels against the reference.
#
#     make && make validate && OUT=validate/results/gpu NAME=h200 validate/run_all.sh
#
# Losses are compared with those that PyTorch recorded (losses/run). A card with 80 GB or more is needed, and no other process on
# it while probe, replay and train look at its memory. PARTS picks some: probe replay train check limits sanitizer losses failures, and
# with two GPUs, a build with MPI=1 and mpirun: ranks. PARTS="random" runs COUNT jobs chosen from SEED, with RANKS=2 data-parallel. JOBS=N runs those that do not look at the card N at a time.
set -u
here=$(dirname "$0")
: "${MEMPLAN:=$here/../memplan}" "${VALIDATE:=$here/memplan-validate}" "${OUT:=.}" "${NAME:=gpu}"
: "${WORK:=$(mktemp -d)}" "${PARTS:=probe replay train check limits sanitizer losses failures}"
: "${ONE:=60}" # seconds that one job may take
: "${SEED:=81}" "${COUNT:=30}" "${RANKS:=1}"
: "${JOBS:=1}" "${PYTHON:=python3}" "${MPIRUN:=mpirun}"
: "${STARTS:=}" # folder with losses that train_reference.py recorded for jobs of `train`
mkdir -p "$WORK" "$OUT"
gpu=$OUT/$NAME-probe.json
rm -f "$WORK/failed"

fail() { : >"$WORK/failed"; }
say() { echo "== $* ($(($(date +%s) - started)) s)"; }
started=$(date +%s)

# ---- models: small enough to be quick; dropout is off where its random numbers would differ from PyTorch's ----

# Results have them in full, not the names of files that are gone.
: >"$WORK/models.sed"
model() {
    printf '%s\n' "$2" >"$WORK/$1.json"
    printf '%s\n' "s#\"model\": \"$WORK/$1.json\"#\"model\": $2#" >>"$WORK/models.sed"
}
dry='"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0'
model gpt2-dry "{\"model_type\": \"gpt2\", $dry}"
model gpt2-wet '{"model_type": "gpt2"}'
model bert-dry '{"model_type": "bert", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}'
model bert-wet '{"model_type": "bert"}'
llama='"model_type": "llama", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 32000'
model llama-small "{$llama, \"num_key_value_heads\": 4, \"intermediate_size\": 2048}"
model small-gpt2 '{"model_type": "gpt2", "n_layer": 3, "n_embd": 512, "n_head": 8}'
model small-bert '{"model_type": "bert", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}'
model small-llama '{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1376, "vocab_size": 32000}'
model tiny-gpt2 '{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 211, "n_positions": 64}'
model tiny-bert '{"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 211}'
model tiny-llama '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 211}'

# program NAME MODEL OPTION...: $WORK/NAME.jsonl, unless it is there
program() {
    name=$1 model=$2
    shift 2
    [ -s "$WORK/$name.jsonl" ] && return
    [ -f "$WORK/$model.json" ] && model=$WORK/$model.json
    card=$gpu
    [ -s "$gpu" ] || card=H200-141G
    "$MEMPLAN" fit --no-advice --gpu "$card" --framework validate --model "$model" "$@" --program "$WORK/$name.jsonl" \
        >"$WORK/$name.fit" 2>&1 || [ $? -eq 1 ] || cat "$WORK/$name.fit"
}

# validate COMMAND RESULTS NAME OPTION...: one line of JSON for each run; LAUNCH goes before the program
validate() {
    command=$1 results=$2 name=$3
    shift 3
    result=$results.$name.part
    rm -f "$result"
    # shellcheck disable=SC2086
    timeout "$ONE" ${LAUNCH:-} "$VALIDATE" "$command" "$WORK/$name.jsonl" "$@" -o "$result" >"$WORK/$name.out" 2>&1 </dev/null
    code=$?
    [ $code -eq 0 ] || { fail; echo "   $command $name $*: exit status $code"; tail -n 3 "$WORK/$name.out"; }
    [ -s "$result" ] && sed -f "$WORK/models.sed" -e "s#$WORK/##g; s#$OUT/##g" "$result" >>"$results.${part_of:-all}"
    rm -f "$result"
}

# Results of jobs side by side go to files of their own; together_in RESULTS puts them into one.
together_in() {
    cat "$1".all "$1".[0-9]* >"$1" 2>/dev/null
    rm -f "$1".all "$1".[0-9]*
}

# side_by_side COMMAND...: in the background, JOBS at a time
n_started=0
side_by_side() {
    n_started=$((n_started + 1))
    (
        part_of=$(printf '%03d' $n_started)
        "$@"
    ) &
    [ $((n_started % JOBS)) -ne 0 ] || wait
}

# ---- what is trained: 20 steps ----

train_jobs() {
    cat <<'END'
gpt2-fp32 gpt2-dry --batch 2 --seq 128 --precision fp32
gpt2-fp32-eager gpt2-dry --batch 2 --seq 128 --precision fp32 --attention eager --clip-grad-norm
gpt2-fp32-checkpoint gpt2-dry --batch 4 --seq 128 --precision fp32 --checkpoint full
bert-fp32 bert-dry --batch 4 --seq 128 --precision fp32
bert-fp32-eager-padded bert-dry --batch 4 --seq 128 --precision fp32 --attention eager --attention-mask=padded
llama-fp32 llama-small --batch 2 --seq 128 --precision fp32
llama-fp32-eager llama-small --batch 2 --seq 128 --precision fp32 --attention eager --accumulate 2
llama-fp32-reentrant llama-small --batch 2 --seq 256 --precision fp32 --checkpoint full-reentrant
gpt2-amp gpt2-dry --batch 4 --seq 256 --precision amp-bf16
bert-amp bert-dry --batch 8 --seq 128 --precision amp-bf16
llama-amp-checkpoint llama-small --batch 4 --seq 256 --precision amp-bf16 --checkpoint full
gpt2-fp16-fused gpt2-dry --batch 2 --seq 128 --precision amp-fp16 --optimizer adamw-fused --clip-grad-norm
gpt2-amp-dropout gpt2-wet --batch 4 --seq 256 --precision amp-bf16
bert-bf16-dropout bert-wet --batch 4 --seq 128 --precision bf16 --optimizer sgd-momentum
END
}

# ---- what is replayed; after |: caps, as a percentage of the predicted reserved bytes ----

replay_jobs() {
    cat <<'END'
r-gpt2 gpt2 --batch 8 --seq 1024|80
r-gpt2-medium gpt2-medium --batch 4 --seq 1024 --checkpoint full|
r-gpt2-large gpt2-large --batch 2 --seq 1024 --precision bf16|90
r-gpt2-xl gpt2-xl --batch 1 --seq 1024 --optimizer adamw-fused|
r-gpt-1.3b gpt-1.3b --batch 1 --seq 2048 --precision bf16 --checkpoint full|
r-bert-base bert-base --batch 32 --seq 128 --attention eager|70
r-bert-large bert-large --batch 16 --seq 512 --precision amp-fp16 --clip-grad-norm|
r-tinyllama tinyllama-1.1b --batch 1 --seq 1024|
r-llama3.2-1b llama3.2-1b --batch 2 --seq 1024 --precision bf16|85
r-qwen2-0.5b qwen2-0.5b --batch 2 --seq 512 --precision fp32|
r-qwen3-0.6b qwen3-0.6b --batch 2 --seq 777 --accumulate 3|
r-lengths gpt2 --batch 4 --seq-lengths 512,1000,333 --iterations 6|
r-split gpt2-medium --batch 4 --seq 777 --allocator-conf max_split_size_mb:128|
r-round llama3.2-1b --batch 1 --seq 600 --precision bf16 --allocator-conf roundup_power2_divisions:8|
r-empty gpt2 --batch 4 --seq 512 --empty-cache-each-step --iterations 4|
END
}

# ---- limits of the allocator: is what is called "fits" alive, and what is called too large dead? 2 to 4 layers each ----

limit_jobs() {
    cat <<'END'
l-gpt2 small-gpt2 --batch 4 --seq 256
l-gpt2-eager small-gpt2 --batch 4 --seq 256 --attention eager --precision fp32
l-gpt2-fp16 small-gpt2 --batch 8 --seq 128 --precision amp-fp16 --clip-grad-norm
l-bert small-bert --batch 8 --seq 128
l-bert-checkpoint small-bert --batch 16 --seq 128 --checkpoint full
l-llama small-llama --batch 4 --seq 256
l-llama-bf16 small-llama --batch 4 --seq 256 --precision bf16 --optimizer adamw-fused
l-llama-accumulate small-llama --batch 2 --seq 256 --accumulate 2 --precision fp32
END
}

check_jobs() {
    cat <<'END'
c-gpt2-fp32 tiny-gpt2 --precision fp32
c-gpt2-amp tiny-gpt2 --precision amp-bf16 --clip-grad-norm
c-gpt2-eager tiny-gpt2 --precision fp32 --attention eager --checkpoint full
c-gpt2-fp16 tiny-gpt2 --precision amp-fp16
c-bert-fp32 tiny-bert --precision fp32
c-bert-bf16 tiny-bert --precision bf16 --attention-mask=padded
c-bert-eager tiny-bert --precision fp32 --attention eager --attention-mask=padded --optimizer sgd-momentum
c-llama-fp32 tiny-llama --precision fp32
c-llama-amp tiny-llama --precision amp-bf16 --checkpoint full-reentrant
c-llama-eager tiny-llama --precision fp32 --attention eager --accumulate 2
END
}

# What compute-sanitizer sees: one layer, one step; together they launch every kernel.
smallest='--batch 1 --seq 16 --iterations 1'
sanitizer_jobs() {
    cat <<'END'
s-gpt2-fp32 one-gpt2 --precision fp32
s-gpt2-amp one-gpt2 --precision amp-bf16 --clip-grad-norm --checkpoint full
s-gpt2-fp16 one-gpt2 --precision amp-fp16
s-gpt2-eager one-gpt2 --precision fp32 --attention eager
s-bert-padded one-bert --precision bf16 --attention-mask=padded
s-bert-eager one-bert --precision fp32 --attention eager --attention-mask=padded --optimizer sgd-momentum
s-llama-fp32 one-llama --precision fp32
s-llama-amp one-llama --precision amp-bf16 --checkpoint full-reentrant
s-llama-eager one-llama --precision fp32 --attention eager --accumulate 2
END
}
model one-gpt2 '{"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 211, "n_positions": 64}'
model one-bert '{"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 211}'
model one-llama '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 211}'

# Data-parallel jobs; those without a precision of their own are compared with PyTorch by losses/run ranks.
rank_jobs() {
    cat <<'END'
d-gpt2-fp32 gpt2-dry --batch 2 --seq 128 --precision fp32
d-gpt2-amp-view gpt2-dry --batch 4 --seq 256 --precision amp-bf16 --ddp {"gradient_as_bucket_view":true} --clip-grad-norm
d-bert-fp32 bert-dry --batch 4 --seq 128 --precision fp32 --ddp {"static_graph":true}
d-llama-amp-checkpoint llama-small --batch 4 --seq 256 --precision amp-bf16 --checkpoint full
END
}

about() { echo "# validate/run_all.sh, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1), $(date -u +%F)"; }

# sanitize NAME TOOL PRODUCTS
sanitize() {
    log=$WORK/$1-$2-$3.log plain=
    [ "$3" = plain ] && plain=--plain-products
    # shellcheck disable=SC2086
    timeout "$ONE" compute-sanitizer --tool "$2" --error-exitcode 9 "$VALIDATE" train "$WORK/$1.jsonl" $plain -o "$WORK/$1-$2-$3.json" \
        >"$log" 2>&1
    code=$?
    echo "$2 $1, products by $3: exit status $code, $(grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$log" | head -n 1)" \
        >"$OUT/$NAME-sanitizer.txt.$part_of"
    [ $code -eq 0 ] || { fail; tail -n 20 "$log"; }
}

# limits NAME: the same program under limits around what it is predicted to reserve
limits() {
    reserved=$(sed -n '1s/.*"reserved_bytes": \([0-9]*\), "context_bytes".*/\1/p' "$WORK/$1.jsonl")
    for percent in 101 100 99 97 94 90 80 65; do
        limit=$((reserved * percent / 100))
        [ $percent -eq 101 ] && limit=$((reserved + 2097152))
        # shellcheck disable=SC2086
        program "$1-$percent" $2 --iterations 3 --allocator-limit-bytes $limit
        validate replay "$OUT/$NAME-limits.jsonl" "$1-$percent"
    done
}

# Run specs of choose.py as programs for this card: ids in $WORK/random-jobs.
random_jobs() {
    more=
    [ "$RANKS" -gt 1 ] && more=", \"data_parallel\": \"ddp\", \"world\": $RANKS"
    "$PYTHON" "$here/choose.py" runs --seed "$SEED" --count "$COUNT" --largest-gib 6 | grep -v expandable_segments >"$WORK/random.jsonl"
    sed 's/^{"id": "\([^"]*\)".*/\1/' "$WORK/random.jsonl" >"$WORK/random-jobs"
    while read -r name; do
        grep "^{\"id\": \"$name\"" "$WORK/random.jsonl" |
            sed "s/^{\"id\": \"[^\"]*\", \"run\": //; s/}, \"expect_bytes\": [0-9]*}\$/$more}/; s/\"hf\"/\"validate\"/; s#\"H200-141G\"#\"$gpu\"#" \
                >"$WORK/$name.json"
        "$MEMPLAN" fit --no-advice --run "$WORK/$name.json" --program "$WORK/$name.jsonl" >"$WORK/$name.fit" 2>&1 &
    done <"$WORK/random-jobs"
    wait
}

# fails COMMAND...: what it says and how it ends, into h200-failures.txt
fails() {
    started_one=$(date +%s)
    timeout "$ONE" "$@" >"$WORK/failure" 2>&1 </dev/null
    code=$?
    {
        echo "\$ $*" | sed "s#$MPIRUN#mpirun#; s#$WORK/##g; s#$VALIDATE#memplan-validate#g; s#$OUT/##g"
        grep memplan-validate "$WORK/failure" | sed "s#$WORK/##g"
        echo "exit status $code after $(($(date +%s) - started_one)) s"
    } >>"$OUT/$NAME-failures.txt"
}

# fill_card MIB: another process leaves so much of the card, for 8 seconds.
fill_card() {
    "$PYTHON" -c '
import sys, time, torch
free, total = torch.cuda.mem_get_info()
block = torch.empty(free - (int(sys.argv[1]) << 20), dtype=torch.uint8, device="cuda")
print("full", flush=True)
time.sleep(8)' "$1" >"$WORK/filler" 2>&1 &
    filler=$!
    while kill -0 $filler 2>/dev/null && ! grep -q full "$WORK/filler"; do sleep 0.2; done
}

for part in $PARTS; do
    say "$part"
    case $part in
    probe)
        timeout "$ONE" "$VALIDATE" probe -o "$gpu" || fail
        ;;
    check)
        rm -f "$OUT/$NAME-operations.jsonl"
        { check_jobs | sed 's/$/ --batch 2 --seq 32 --iterations 2/'; sanitizer_jobs | sed "s/$/ $smallest/"; } >"$WORK/check-jobs"
        while read -r name model options; do
            # shellcheck disable=SC2086
            program "$name" "$model" $options
            side_by_side validate train "$OUT/$NAME-operations.jsonl" "$name" --check
        done <"$WORK/check-jobs"
        wait
        together_in "$OUT/$NAME-operations.jsonl"
        ;;
    sanitizer)
        sanitizer_jobs >"$WORK/jobs"
        while read -r name model options; do
            # shellcheck disable=SC2086
            program "$name" "$model" $smallest $options
            # initcheck does not see what cuBLAS stores through the tensor memory accelerator: every result would be a finding
            for tool in memcheck initcheck racecheck; do
                side_by_side sanitize "$name" $tool plain
                [ $tool = initcheck ] || side_by_side sanitize "$name" $tool cuBLAS
            done
        done <"$WORK/jobs"
        wait
        together_in "$OUT/$NAME-sanitizer.txt"
        {
            about
            compute-sanitizer --version | tail -n 1
            cat "$WORK"/s-*-memcheck-*.json | grep -o '"kernel_launches": {[^}]*}' | grep -o '[a-z_]*_kernel' | sort -u | tr '\n' ' ' |
                sed 's/^/kernels launched: /'
            echo
        } >>"$OUT/$NAME-sanitizer.txt"
        cat "$OUT/$NAME-sanitizer.txt"
        ;;
    limits)
        limit_jobs >"$WORK/limit-jobs"
        while read -r name rest; do
            # shellcheck disable=SC2086
            program "$name" $rest --iterations 3
            side_by_side limits "$name" "$rest"
        done <"$WORK/limit-jobs"
        wait
        together_in "$OUT/$NAME-limits.jsonl"
        ;;
    replay)
        rm -f "$OUT/$NAME-replay.jsonl"
        replay_jobs >"$WORK/replay-jobs"
        while IFS='|' read -r job cap; do
            name=${job%% *} rest=${job#* }
            # shellcheck disable=SC2086
            program "$name" ${rest%% *} ${rest#* } &
        done <"$WORK/replay-jobs"
        wait
        while IFS='|' read -r job cap; do
            name=${job%% *}
            validate replay "$OUT/$NAME-replay.jsonl" "$name"
            [ -n "$cap" ] || continue
            reserved=$(sed -n '1s/.*"reserved_bytes": \([0-9]*\), "context_bytes".*/\1/p' "$WORK/$name.jsonl")
            validate replay "$OUT/$NAME-replay.jsonl" "$name" --cap $((reserved * cap / 100))
            validate replay "$OUT/$NAME-replay.jsonl" "$name" --leave $((reserved * cap / 100))
            validate replay "$OUT/$NAME-replay.jsonl" "$name" --leave $((reserved + 4194304))
        done <"$WORK/replay-jobs"
        together_in "$OUT/$NAME-replay.jsonl"
        ;;
    train)
        rm -f "$OUT/$NAME-train.jsonl"
        train_jobs | grep -E "${ONLY:-.}" >"$WORK/train-jobs"
        while read -r name model options; do
            # shellcheck disable=SC2086
            program "$name" "$model" --iterations 20 $options &
        done <"$WORK/train-jobs"
        wait
        while read -r name model options; do
            set --
            [ -n "$STARTS" ] && [ -s "$STARTS/$name.losses.json" ] && set -- --losses "$STARTS/$name.losses.json"
            validate train "$OUT/$NAME-train.jsonl" "$name" "$@"
        done <"$WORK/train-jobs"
        together_in "$OUT/$NAME-train.jsonl"
        ;;
    starts) # PyTorch's losses of the jobs of `train` in fp32, from the same start
        train_jobs | grep fp32 >"$WORK/start-jobs"
        mkdir -p "$WORK/starts"
        while read -r name model options; do
            # shellcheck disable=SC2086
            program "$name" "$model" --iterations 20 $options
            mv "$WORK/$name.jsonl" "$WORK/starts/$name.jsonl" # its card is not the probe's
            side_by_side timeout "$ONE" "$VALIDATE" train "$WORK/starts/$name.jsonl" --start "$WORK/starts/$name"
        done <"$WORK/start-jobs"
        wait
        "$PYTHON" "$here/train_reference.py" "$WORK"/starts/*.jsonl -o "$WORK/starts" || fail
        rm -f "$WORK"/starts/*.weights
        ;;
    losses)
        card=$gpu
        [ -s "$gpu" ] || card=H200-141G
        GPU=$card MEMPLAN=$MEMPLAN VALIDATE=$VALIDATE OUT=$OUT/$NAME-losses.jsonl "$here/losses/run" || fail
        ;;
    random) # trained where every operation has a kernel, else replayed
        random_jobs
        results=$OUT/$NAME-random$([ "$RANKS" -gt 1 ] && echo -ranks).jsonl
        [ "$RANKS" -gt 1 ] && LAUNCH="$MPIRUN -n $RANKS"
        while read -r name; do
            code=0
            # shellcheck disable=SC2086
            timeout "$ONE" ${LAUNCH:-} "$VALIDATE" train "$WORK/$name.jsonl" -o "$WORK/result" >"$WORK/$name.out" 2>&1 </dev/null || code=$?
            if [ $code -eq 2 ]; then
                grep -m 1 memplan-validate "$WORK/$name.out" | sed "s#$WORK/##g; s/^/   $name: /"
                LAUNCH='' validate replay "$results" "$name"
            elif [ -s "$WORK/result" ]; then
                sed "s#$WORK/##g; s#$OUT/##g" "$WORK/result" >>"$results.all"
            fi
            [ $code -eq 0 ] || [ $code -eq 2 ] || { fail; echo "   train $name: exit status $code"; tail -n 3 "$WORK/$name.out"; }
            rm -f "$WORK/result"
        done <"$WORK/random-jobs"
        LAUNCH=''
        together_in "$results"
        ;;
    failures)
        about >"$OUT/$NAME-failures.txt"
        program f-small tiny-gpt2 --batch 1 --seq 16 --iterations 1
        program f-middle gpt2-dry --batch 2 --seq 128 --precision fp32 --iterations 1
        "$MEMPLAN" fit --no-advice --gpu B200-180G --framework validate --model gpt2-xl --batch 16 --seq 1024 --checkpoint none \
            --precision fp32 --iterations 1 --program "$WORK/f-large.jsonl" >/dev/null 2>&1
        "$MEMPLAN" fit --no-advice --gpu T4-16G --framework validate --model gpt2-xl --batch 16 --seq 1024 --iterations 1 \
            --program "$WORK/f-dies.jsonl" >/dev/null 2>&1
        for command in probe "train $WORK/f-small.jsonl" "replay $WORK/f-small.jsonl"; do
            # shellcheck disable=SC2086
            fails env CUDA_VISIBLE_DEVICES= "$VALIDATE" $command
        done
        fails "$VALIDATE" replay "$WORK/f-large.jsonl"
        fails "$VALIDATE" replay "$WORK/f-dies.jsonl"
        for left in 200 600 1500; do
            echo "# another process leaves $left MiB of the card" >>"$OUT/$NAME-failures.txt"
            fill_card $left
            # shellcheck disable=SC2086
            for command in probe "train $WORK/f-middle.jsonl" "replay $WORK/f-middle.jsonl"; do
                fails "$VALIDATE" $command
            done
            wait $filler
        done
        cat "$OUT/$NAME-failures.txt"
        ;;
    ranks)
        timeout "$ONE" "$VALIDATE" probe -o "$OUT/$NAME-probe-one-process.json" >"$WORK/probe-one.out" 2>&1 || fail
        grep NCCL "$WORK/probe-one.out"
        # shellcheck disable=SC2086
        timeout "$ONE" $MPIRUN -n 2 "$VALIDATE" probe -o "$OUT/$NAME-probe-ranks.json" >"$WORK/probe-ranks.out" 2>&1 || fail
        grep NCCL "$WORK/probe-ranks.out" || tail -n 20 "$WORK/probe-ranks.out"
        [ -s "$gpu" ] || gpu=$OUT/$NAME-probe-ranks.json
        rank_jobs >"$WORK/rank-jobs"
        while read -r name model options; do
            # shellcheck disable=SC2086
            program "$name" "$model" --iterations 20 --data-parallel ddp --world 2 $options
            LAUNCH="$MPIRUN -n 2" validate train "$OUT/$NAME-train-ranks.jsonl" "$name"
        done <"$WORK/rank-jobs"
        together_in "$OUT/$NAME-train-ranks.jsonl"
        program d-three tiny-gpt2 --batch 2 --seq 32 --iterations 2 --precision fp32 --data-parallel ddp --world 3
        program d-check tiny-gpt2 --batch 2 --seq 32 --iterations 2 --precision fp32 --data-parallel ddp --world 2
        LAUNCH="$MPIRUN -n 2" validate train "$OUT/$NAME-operations-ranks.jsonl" d-check --check
        together_in "$OUT/$NAME-operations-ranks.jsonl"
        MPIRUN=$MPIRUN MEMPLAN=$MEMPLAN VALIDATE=$VALIDATE OUT=$OUT/$NAME-losses-ranks.jsonl "$here/losses/run" ranks || fail
        saved=$NAME NAME=$NAME-ranks
        about >"$OUT/$NAME-failures.txt"
        # shellcheck disable=SC2086
        {
            fails $MPIRUN -n 3 "$VALIDATE" train "$WORK/d-three.jsonl"
            fails $MPIRUN -n 2 "$VALIDATE" train "$WORK/d-three.jsonl"
            fails env CUDA_VISIBLE_DEVICES= $MPIRUN -n 2 "$VALIDATE" train "$WORK/d-check.jsonl"
            fails $MPIRUN -n 1 "$VALIDATE" train "$WORK/d-check.jsonl" : -n 1 "$VALIDATE" train "$WORK/d-check.jsonl" --cap 24MiB
        }
        cat "$OUT/$NAME-failures.txt"
        NAME=$saved
        ;;
    esac
done
say "done"
[ ! -e "$WORK/failed" ]
