# parts of a grid, put together in any order, are the whole; parts of another one are refused; missing points are told
cat >"$TMPDIR/grid.yaml" <<'YAML'
model: gpt2
gpu: [T4-16G, L4-24G]
batch: {from: 1, to: 5, step: 1}
seq: 256
YAML
cd "$TMPDIR" || exit 3
memplan sweep grid.yaml -o all.csv
for i in 1 2 3; do memplan sweep grid.yaml --shard $i/3 -o part-$i.csv; done
memplan merge part-3.csv part-1.csv part-2.csv -o merged.csv
echo "exit status $?"
cmp all.csv merged.csv && echo the whole
memplan merge part-1.csv part-2.csv -o merged.csv
echo "exit status $?"
sed 's/to: 5/to: 6/' grid.yaml >other.yaml
memplan sweep other.yaml --shard 3/3 -o other.csv
memplan merge part-1.csv other.csv 2>&1 >/dev/null | sed 's/[0-9a-f]\{16\}/HASH/g'
memplan merge part-1.csv grid.yaml
memplan merge all.svg
memplan sweep grid.yaml --shard 4/3
memplan sweep grid.yaml --shard 1/3 -o map.svg
