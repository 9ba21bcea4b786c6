# a config.json that is damaged, absurd or not ours: one message with the file, the key and the way out
cd "$TMPDIR" || exit 3
try() {
    memplan fit --gpu H200-141G --no-advice --model ./config.json
    echo "exit status $?"
}
gpt2() { printf '{"model_type": "gpt2", %s}' "$1" >config.json; try; }
printf '{"model_type": "gpt2", "n_embd": 7' >config.json; try
printf '{"model_type": "gpt2"} {}' >config.json; try
printf '{"model_type": "gpt2", "n_layer": 1e999}' >config.json; try
printf '{"model_type": "gpt2", "n_layer": NaN}' >config.json; try
printf '{"model_type": "gpt2", "n_layer": 2, "n_layer": 3}' >config.json; try
awk 'BEGIN { printf "{\"model_type\": \"gpt2\", \"x\": "; for (i = 0; i < 100; i++) printf "["; }' >config.json; try
printf '[]' >config.json; try
printf '"gpt2"' >config.json; try
: >config.json; try
printf '\377\376' >config.json; try
printf '{"n_layer": 2}' >config.json; try
printf '{"model_type": "rwkv"}' >config.json; try
gpt2 '"n_layer": -1'
gpt2 '"n_layer": 0'
gpt2 '"n_layer": 2147483648'
gpt2 '"n_layer": 18446744073709551616'
gpt2 '"n_layer": 2.5'
gpt2 '"n_layer": "2"'
gpt2 '"n_layer": null'
gpt2 '"n_embd": 100, "n_head": 12'
gpt2 '"n_embd": 0, "n_head": -1, "vocab_size": true'
gpt2 '"n_embd": 536870912, "n_head": 1'
gpt2 '"n_embd": 2147483647, "n_head": 1'
gpt2 '"resid_pdrop": 1.5'
gpt2 '"activation_function": "swiglu"'
printf '{"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 4, "hidden_size": 96}' >config.json; try
