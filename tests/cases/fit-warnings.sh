# what runs, but is unusual, is warned of: a rotary model beyond its positions, bfloat16 on a card without it, another head
memplan fit --gpu H200-141G --model tinyllama-1.1b --seq 4096 --no-advice --json | grep -c '"fits": true'
memplan fit --gpu T4-16G --model gpt2 --precision amp-bf16 --no-advice --json | grep -c '"fits": true'
sed 's/GPT2LMHeadModel/GPT2ForSequenceClassification/' models/gpt2.json >"$TMPDIR/config.json"
memplan fit --gpu T4-16G --model "$TMPDIR/config.json" --no-advice --json | grep -c '"fits": true'
