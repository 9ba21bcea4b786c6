# --program writes a header, operations and memory events, in order
printf '{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 8}' >"$TMPDIR/tiny.json"
memplan fit --gpu H200-141G --model "$TMPDIR/tiny.json" --seq 4 --precision fp32 --iterations 1 --no-advice --program "$TMPDIR/p.jsonl" >/dev/null
head -n 1 "$TMPDIR/p.jsonl" | grep -o '"[a-z_]*": [{0-9"]' | head -n 4
for kind in op alloc free mark; do
    echo "$kind $(grep -c "^{\"$kind\"" "$TMPDIR/p.jsonl")"
done
grep '"op": "parameter", "name": "attn.c_attn"' "$TMPDIR/p.jsonl" | head -n 1
grep '"op": "attention"' "$TMPDIR/p.jsonl" | grep -o '"attributes".*'
grep '"mark"' "$TMPDIR/p.jsonl"
memplan fit --gpu H200-141G --model "$TMPDIR/tiny.json" --seq 4 --no-advice --program "$TMPDIR/none/p.jsonl" 2>&1 >/dev/null | sed "s#$TMPDIR#TMP#"
