#!/bin/sh
# SPDX-License-Identifier: MIT
# Small jobs of the trained families: every operation against the float64 reference, memory against the prediction, losses
# against those that PyTorch recorded.
set -u
: "${MEMPLAN:=../memplan}" "${VALIDATE:=build/host/memplan-validate}" "${BUILD:=build}" "${MPIRUN=}"
work=$BUILD/check
mkdir -p "$work"
passed=0 failed=0 skipped=0

cat >"$work/gpt2.json" <<'END'
{"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 101, "n_positions": 32}
END
cat >"$work/bert.json" <<'END'
{"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 101}
END
cat >"$work/llama.json" <<'END'
{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "intermediate_size": 64, "vocab_size": 101}
END
cat >"$work/narrow.json" <<'END'
{"model_type": "llama", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 101}
END
cat >"$work/qwen3.json" <<'END'
{"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
 "intermediate_size": 64, "vocab_size": 101}
END

# count STATUS: of the job $name; a failure shows what was said
count() {
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $name"
        cat "$work/$name.err"
        grep -E 'FAILED|NOT' "$work/$name.txt"
    fi
}

# job NAME MODEL OPTION...
job() {
    name=$1 model=$2
    shift 2
    "$MEMPLAN" fit --no-advice --model "$work/$model.json" --batch 2 --seq 16 --iterations 2 "$@" \
        --program "$work/$name.jsonl" >/dev/null 2>"$work/$name.err" &&
        "$VALIDATE" train "$work/$name.jsonl" --check -o "$work/$name.json" >"$work/$name.txt" 2>>"$work/$name.err" &&
        "$VALIDATE" replay "$work/$name.jsonl" >>"$work/$name.txt" 2>>"$work/$name.err"
    count $?
}

h=H200-141G
job gpt2-fp32 gpt2 --gpu $h --precision fp32
job gpt2-amp gpt2 --gpu $h --precision amp-bf16
job gpt2-fp16 gpt2 --gpu $h --precision amp-fp16 --clip-grad-norm
job gpt2-fused gpt2 --gpu $h --precision amp-fp16 --optimizer adamw-fused
job gpt2-clip-bf16 gpt2 --gpu $h --precision bf16 --clip-grad-norm
job gpt2-eager gpt2 --gpu $h --precision bf16 --attention eager --accumulate 2
job gpt2-padded gpt2 --gpu $h --precision amp-bf16 --attention-mask=padded --clip-grad-norm
job gpt2-checkpoint gpt2 --gpu $h --precision fp32 --checkpoint full
job gpt2-reentrant gpt2 --gpu $h --precision amp-bf16 --checkpoint full-reentrant
job gpt2-flash gpt2 --gpu A100-80G --precision bf16 --optimizer sgd-momentum
job gpt2-volta gpt2 --gpu V100-32G --precision amp-fp16
job gpt2-cache gpt2 --gpu $h --precision fp32 --use-cache --optimizer sgd
job gpt2-lora gpt2 --gpu $h --precision fp32 --lora '{rank: 4, targets: [c_attn], dropout: 0.1}'
job bert-fp32 bert --gpu $h --precision fp32
job bert-amp bert --gpu $h --precision amp-bf16 --checkpoint '{layers: [1]}'
job bert-eager bert --gpu $h --precision fp32 --attention eager --attention-mask=padded
job bert-padded bert --gpu $h --precision bf16 --attention-mask=padded
job llama-fp32 llama --gpu $h --precision fp32
job llama-amp llama --gpu $h --precision amp-bf16 --checkpoint full
job llama-eager llama --gpu $h --precision fp32 --attention eager
job llama-flash llama --gpu A100-80G --precision bf16
job llama-padded llama --gpu $h --precision amp-bf16 --attention-mask=padded
job narrow-flash narrow --gpu A100-80G --precision bf16
job qwen3-fp32 qwen3 --gpu $h --precision fp32 --init-device cpu

MEMPLAN=$MEMPLAN VALIDATE=$VALIDATE losses/run >"$work/losses.txt" 2>&1 || grep -v ' differ by ' "$work/losses.txt"
line=$(tail -n 1 "$work/losses.txt")
passed=$((passed + ${line%% passed*}))
line=${line#* passed, }
failed=$((failed + ${line%% failed*}))

# ---- what goes wrong: the exit status, and one line of each process that says why ----

# fails STATUS TEXT COMMAND...: times=N for N lines
fails() {
    wanted=$1 text=$2
    shift 2
    timeout 60 "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    lines=$(grep -c "$text" "$work/err")
    if [ $code -eq "$wanted" ] && [ "$lines" -eq "${times:-1}" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: exit status $code, not $wanted, or $lines lines, not ${times:-1}, with '$text': $*"
        cat "$work/err"
    fi
}

"$MEMPLAN" fit --no-advice --gpu $h --model gpt2 --batch 16 --seq 512 --iterations 1 --program "$work/large.jsonl" >/dev/null
"$MEMPLAN" fit --no-advice --gpu T4-16G --model gpt2-xl --batch 16 --seq 512 --iterations 1 --program "$work/dies.jsonl" >/dev/null
small=$work/gpt2-fp32.jsonl
for command in 'probe' "train $small" "replay $small"; do
    # shellcheck disable=SC2086
    {
        fails 3 'no GPU that CUDA can use; check nvidia-smi and CUDA_VISIBLE_DEVICES' env HOST_CARD=none "$VALIDATE" $command
        fails 3 'the driver is for CUDA 12.8, older than CUDA 13.0' env HOST_CARD=old-driver "$VALIDATE" $command
        fails 3 'no NVIDIA driver on this machine' env HOST_CARD=no-driver "$VALIDATE" $command
    }
done
fails 3 'the card is too small: it has 2147483648 bytes' "$VALIDATE" train "$work/large.jsonl"
fails 3 'the card is too small' "$VALIDATE" replay "$work/large.jsonl"
fails 3 'the job does not fit on T4-16G: so fit predicts' "$VALIDATE" replay "$work/dies.jsonl"
fails 3 'other processes fill the card' env HOST_CARD=1920 "$VALIDATE" train "$small"
fails 3 'another process fills the card' env HOST_CARD=2060 "$VALIDATE" train "$small"
fails 3 'No such file' "$VALIDATE" train "$work/missing.jsonl"
fails 2 'a program file is needed' "$VALIDATE" train
times=0 fails 0 . "$VALIDATE" train "$work/gpt2-fp32.jsonl" --cap 24MiB # dies where the prediction does
times=0 fails 0 . "$VALIDATE" replay "$work/gpt2-fp32.jsonl" --cap 24MiB

# ---- ranks: DistributedDataParallel over two processes ----

"$MEMPLAN" fit --no-advice --gpu $h --model "$work/gpt2.json" --batch 2 --seq 16 --iterations 2 --precision fp32 --data-parallel ddp \
    --world 2 --program "$work/ddp.jsonl" >/dev/null 2>&1
fails 2 'the program is for 2 ranks, and 1 process was started' "$VALIDATE" train "$work/ddp.jsonl"

# ranks N ARGUMENT...: the host build under mpirun
ranks() {
    n=$1
    shift
    "$MPIRUN" --allow-run-as-root --oversubscribe -n "$n" "$VALIDATE-mpi" "$@" </dev/null
}

# ddp NAME MODEL OPTION...
ddp() {
    name=$1 model=$2
    shift 2
    "$MEMPLAN" fit --no-advice --gpu $h --model "$work/$model.json" --batch 2 --seq 16 --iterations 2 --data-parallel ddp --world 2 "$@" \
        --program "$work/$name.jsonl" >/dev/null 2>"$work/$name.err" &&
        ranks 2 train "$work/$name.jsonl" --check -o "$work/$name.json" >"$work/$name.txt" 2>>"$work/$name.err"
    count $?
}

if [ -n "$MPIRUN" ]; then
    ddp ddp-gpt2 gpt2 --precision fp32
    ddp ddp-gpt2-view gpt2 --precision amp-bf16 --ddp '{gradient_as_bucket_view: true}' --accumulate 2 --clip-grad-norm
    ddp ddp-bert-static bert --precision bf16 --ddp '{static_graph: true, bucket_cap_mb: 1}'
    ddp ddp-llama-unused llama --precision fp32 --ddp '{find_unused_parameters: true}' --checkpoint full
    ddp ddp-llama-no-sync llama --precision amp-fp16 --ddp '{no_sync: true}' --accumulate 2
    MEMPLAN=$MEMPLAN VALIDATE=$VALIDATE-mpi MPIRUN="$MPIRUN --allow-run-as-root --oversubscribe" losses/run ranks \
        >"$work/losses-ranks.txt" 2>&1 || grep -v ' differ by ' "$work/losses-ranks.txt"
    line=$(tail -n 1 "$work/losses-ranks.txt")
    passed=$((passed + ${line%% passed*}))
    line=${line#* passed, }
    failed=$((failed + ${line%% failed*}))
    # each rank says it once, nobody waits
    times=2 fails 3 'no GPU that CUDA can use; check nvidia-smi' env HOST_CARD=none "$MPIRUN" --allow-run-as-root --oversubscribe -n 2 \
        "$VALIDATE-mpi" train "$work/ddp-gpt2.jsonl"
    times=2 fails 3 'no GPU that CUDA can use; check nvidia-smi' env HOST_CARD=none "$MPIRUN" --allow-run-as-root --oversubscribe -n 2 \
        "$VALIDATE-mpi" probe
    # one of two: by its own environment
    fails 3 'rank 1: no GPU that CUDA can use' "$MPIRUN" --allow-run-as-root --oversubscribe -n 1 "$VALIDATE-mpi" train \
        "$work/ddp-gpt2.jsonl" : -n 1 -x HOST_CARD=none "$VALIDATE-mpi" train "$work/ddp-gpt2.jsonl"
    # in the middle: the other one waits in a collective, and is ended
    fails 3 'rank 1: out of memory at event' "$MPIRUN" --allow-run-as-root --oversubscribe -n 1 "$VALIDATE-mpi" train \
        "$work/ddp-gpt2.jsonl" : -n 1 "$VALIDATE-mpi" train "$work/ddp-gpt2.jsonl" --cap 24MiB
    times=2 fails 2 'the program is for 1 rank, and 2 processes were started' "$MPIRUN" --allow-run-as-root --oversubscribe -n 2 \
        "$VALIDATE-mpi" train "$small"
    times=2 fails 2 'start it without mpirun' "$MPIRUN" --allow-run-as-root --oversubscribe -n 2 "$VALIDATE-mpi" replay "$small"
    fails 2 'probe, replay or train is needed' "$MPIRUN" --allow-run-as-root --oversubscribe -n 2 "$VALIDATE-mpi" wait
else
    echo 'skipped: ranks (no mpirun)'
    skipped=1
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
