# an interrupted sweep leaves a valid file, and goes on from there to the same bytes
cat >"$TMPDIR/grid.yaml" <<'YAML'
model: gpt2
gpu: [T4-16G, L4-24G]
batch: {from: 1, to: 40, step: 1}
seq: 256
retain_losses: true
YAML
cd "$TMPDIR" || exit 3
memplan sweep grid.yaml -o all.csv
memplan sweep grid.yaml -o cut.csv --jobs 1 >/dev/null 2>errors &
sleep 0.1
kill -INT $! 2>/dev/null
wait $!
[ -e cut.csv ] || head -1 all.csv >cut.csv
head -1 cut.csv | cut -d, -f2-4
sed -i 7,20d cut.csv
memplan sweep grid.yaml -o cut.csv --resume
cmp all.csv cut.csv && echo the whole
sed 's/seq: 256/seq: 128/' grid.yaml >other.yaml
memplan sweep other.yaml -o cut.csv --resume 2>&1 | sed 's/[0-9a-f]\{16\}/HASH/g'
memplan sweep grid.yaml --resume
echo "exit status $?"
