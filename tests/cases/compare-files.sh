# files: missing, a folder, empty, standard input, several, compressed
cd "$TMPDIR" || exit 3
mkdir folder
: >empty.jsonl
printf '%s\n' '{"id": "one", "run": {"model": "gpt2", "gpu": "H200-141G", "seq": 64, "iterations": 1}}' >one.jsonl
gzip -k one.jsonl
for file in missing.jsonl folder empty.jsonl; do
    memplan compare "$file"
    echo "$file: exit status $?"
done
memplan compare; echo "nothing: exit status $?"
memplan compare - --json <one.jsonl | grep -c '"status": *"ok"'
memplan compare one.jsonl one.jsonl.gz one.jsonl | grep lines
memplan compare one.jsonl --json -o out.json && grep -c '"schema_version": *1' out.json
