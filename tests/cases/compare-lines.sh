# a line that cannot be predicted is an entry with its reason; the others are predicted all the same
cd "$TMPDIR" || exit 3
{
    printf '%s\n' '{"id": "good", "run": {"model": "gpt2", "gpu": "H200-141G", "seq": 64, "iterations": 1}}'
    printf '%s\n' '{"id": "damaged", "run": {"model": "gpt2"'
    printf '%s\n' '' '   '
    printf '%s\n' '{"id": "after", "run": {"model": "gpt2", "gpu": "H200-141G"}} x'
    printf '%s\n' '[]'
    printf '%s\n' '{"id": 7, "run": {"model": "gpt2", "gpu": "H200-141G", "seq": 64}}'
    printf '%s\n' '{"id": "no run"}'
    printf '%s\n' '{"id": "unknown key", "run": {"model": "gpt2", "gpu": "H200-141G", "batchs": 2}}'
    printf '%s\n' '{"id": "unknown family", "run": {"model": {"model_type": "rwkv"}, "gpu": "H200-141G"}}'
    printf '%s\n' '{"id": "too large", "run": {"model": "llama3.2-1b", "gpu": "H200-141G", "batch": 2147483647, "seq": 2147483647}}'
    printf '%s\n' '{"id": "escape \u001b[31m", "run": {"model": "gpt2", "gpu": "H200-141G", "seq": 64, "iterations": 1}}'
} >runs.jsonl
memplan compare runs.jsonl --json >out.json
echo "exit status $?"
grep -o '"id": *"[^"]*", *"status": *"[a-z]*"\|"message": *"[^"]*"\|"lines": *[0-9]*\|"errors": *[0-9]*' out.json
memplan compare runs.jsonl | tail -n 22
# errors come before a requirement that is missed, and a family that is refused is no error
memplan compare runs.jsonl --require requested:0:100 >out.txt; echo "with a requirement: exit status $?"
grep -h 'good\|unknown family' runs.jsonl >refused.jsonl
memplan compare refused.jsonl >out.txt; echo "not supported: exit status $?"
