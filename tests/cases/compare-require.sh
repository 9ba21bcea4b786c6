# thresholds: met, missed, and not understood
cd "$TMPDIR" || exit 3
printf '%s\n' '{"id": "wrong", "run": {"model": "gpt2", "gpu": "H200-141G", "seq": 64, "iterations": 1}, "measured": {"oom": false, "requested_bytes": 1}}' >runs.jsonl
for list in oom:0:100 requested:0:0 requested:0:100,oom:0:100 requested:1%:50; do
    memplan compare runs.jsonl --require "$list" >/dev/null
    echo "$list: exit status $?"
done
for list in requested requested:0 requested:0:101 speed:0:100 requested:x:100 requested:0:100:3; do
    memplan compare runs.jsonl --require "$list"
    echo "$list: exit status $?"
done
