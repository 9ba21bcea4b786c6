#!/bin/sh
# SPDX-License-Identifier: MIT
# Everything that validate/results holds of memplan-validate: probe, replays, training, kernels against the reference.
#
#     make && make validate && OUT=validate/results/gpu NAME=h200 validate/run_all.sh
#
# Losses are compared with those that PyTorch recorded (losses/run). A card with 80 GB or more is needed, and no other process on
# it. PARTS picks some: probe check sanitizer replay train losses.
set -u
here=$(dirname "$0")
: "${MEMPLAN:=$here/../memplan}" "${VALIDATE:=$here/memplan-validate}" "${OUT:=.}" "${NAME:=gpu}"
: "${WORK:=$(mktemp -d)}" "${PARTS:=probe check sanitizer replay train losses}"
: "${ONE:=60}" # seconds that one job may take
mkdir -p "$WORK" "$OUT"
gpu=$OUT/$NAME-probe.json
status=0

say() { echo "== $* ($(($(date +%s) - started)) s)"; }
started=$(date +%s)

# ---- models: small enough to be quick; dropout is off where its random numbers would differ from PyTorch's ----

model() { printf '%s\n' "$2" >"$WORK/$1.json"; }
dry='"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0'
model gpt2-dry "{\"model_type\": \"gpt2\", $dry}"
model gpt2-wet '{"model_type": "gpt2"}'
model bert-dry '{"model_type": "bert", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}'
model bert-wet '{"model_type": "bert"}'
llama='"model_type": "llama", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 32000'
model llama-small "{$llama, \"num_key_value_heads\": 4, \"intermediate_size\": 2048}"
model tiny-gpt2 '{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 211, "n_positions": 64}'
model tiny-bert '{"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 211}'
model tiny-llama '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 211}'

# program NAME MODEL OPTION...: $WORK/NAME.jsonl
program() {
    name=$1 model=$2
    shift 2
    [ -f "$WORK/$model.json" ] && model=$WORK/$model.json
    card=$gpu
    [ -s "$gpu" ] || card=H200-141G
    "$MEMPLAN" fit --no-advice --gpu "$card" --framework validate --model "$model" "$@" --program "$WORK/$name.jsonl" \
        >"$WORK/$name.fit" 2>&1 || [ $? -eq 1 ] || cat "$WORK/$name.fit"
}

# validate COMMAND RESULTS NAME OPTION...: one line of JSON for each run
validate() {
    command=$1 results=$2 name=$3
    shift 3
    rm -f "$WORK/result"
    timeout "$ONE" "$VALIDATE" "$command" "$WORK/$name.jsonl" "$@" -o "$WORK/result"
    code=$?
    [ $code -eq 0 ] || { status=1; echo "   $command $name $*: exit status $code"; }
    [ -s "$WORK/result" ] && sed "s#$WORK/##g; s#\"$OUT/#\"#g" "$WORK/result" >>"$results"
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

for part in $PARTS; do
    say "$part"
    case $part in
    probe)
        timeout "$ONE" "$VALIDATE" probe -o "$gpu" || status=1
        ;;
    check)
        rm -f "$OUT/$NAME-operations.jsonl"
        check_jobs >"$WORK/jobs"
        while read -r name model options; do
            # shellcheck disable=SC2086
            program "$name" "$model" --batch 2 --seq 32 --iterations 2 $options
            validate train "$OUT/$NAME-operations.jsonl" "$name" --check
        done <"$WORK/jobs"
        ;;
    sanitizer)
        for job in c-gpt2-amp c-llama-fp32; do
            for tool in memcheck initcheck racecheck; do
                [ -s "$WORK/$job.jsonl" ] || continue
                timeout "$ONE" compute-sanitizer --tool "$tool" --error-exitcode 9 "$VALIDATE" train "$WORK/$job.jsonl" >"$WORK/log" 2>&1
                echo "$tool $job: exit status $?, $(grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$WORK/log")" | tee -a "$OUT/$NAME-sanitizer.txt"
            done
        done
        ;;
    replay)
        rm -f "$OUT/$NAME-replay.jsonl"
        replay_jobs >"$WORK/jobs"
        while IFS='|' read -r job cap; do
            name=${job%% *} rest=${job#* }
            # shellcheck disable=SC2086
            program "$name" ${rest%% *} ${rest#* }
            validate replay "$OUT/$NAME-replay.jsonl" "$name"
            [ -n "$cap" ] || continue
            reserved=$(sed -n '1s/.*"reserved_bytes": \([0-9]*\), "context_bytes".*/\1/p' "$WORK/$name.jsonl")
            validate replay "$OUT/$NAME-replay.jsonl" "$name" --cap $((reserved * cap / 100))
            validate replay "$OUT/$NAME-replay.jsonl" "$name" --leave $((reserved * cap / 100))
            validate replay "$OUT/$NAME-replay.jsonl" "$name" --leave $((reserved + 4194304))
        done <"$WORK/jobs"
        ;;
    train)
        rm -f "$OUT/$NAME-train.jsonl"
        train_jobs | grep -E "${ONLY:-.}" >"$WORK/jobs"
        while read -r name model options; do
            # shellcheck disable=SC2086
            program "$name" "$model" --iterations 20 $options
            validate train "$OUT/$NAME-train.jsonl" "$name"
        done <"$WORK/jobs"
        ;;
    losses)
        card=$gpu
        [ -s "$gpu" ] || card=H200-141G
        GPU=$card MEMPLAN=$MEMPLAN VALIDATE=$VALIDATE OUT=$OUT/$NAME-losses.jsonl "$here/losses/run" || status=1
        ;;
    esac
done
say "done"
exit $status
