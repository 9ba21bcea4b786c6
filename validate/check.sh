#!/bin/sh
# SPDX-License-Identifier: MIT
# Small jobs of the trained families: every operation against the float64 reference, memory against the prediction, losses
# against those that PyTorch recorded.
set -u
: "${MEMPLAN:=../memplan}" "${VALIDATE:=build/host/memplan-validate}" "${BUILD:=build}"
work=$BUILD/check
mkdir -p "$work"
passed=0 failed=0

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

# job NAME MODEL OPTION...
job() {
    name=$1 model=$2
    shift 2
    if "$MEMPLAN" fit --no-advice --model "$work/$model.json" --batch 2 --seq 16 --iterations 2 "$@" \
        --program "$work/$name.jsonl" >/dev/null 2>"$work/$name.err" &&
        "$VALIDATE" train "$work/$name.jsonl" --check -o "$work/$name.json" >"$work/$name.txt" 2>>"$work/$name.err" &&
        "$VALIDATE" replay "$work/$name.jsonl" >>"$work/$name.txt" 2>>"$work/$name.err"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $name"
        cat "$work/$name.err"
        grep -E 'FAILED|NOT' "$work/$name.txt"
    fi
}

h=H200-141G
job gpt2-fp32 gpt2 --gpu $h --precision fp32
job gpt2-amp gpt2 --gpu $h --precision amp-bf16
job gpt2-fp16 gpt2 --gpu $h --precision amp-fp16 --clip-grad-norm
job gpt2-fused gpt2 --gpu $h --precision amp-fp16 --optimizer adamw-fused
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
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
