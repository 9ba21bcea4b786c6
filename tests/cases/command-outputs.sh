# outputs that would overwrite each other, or what is read, are refused before any work
cp tests/data/runs/h200-max-batch.jsonl "$TMPDIR/runs.jsonl"
cp tests/data/snapshots/protocol4.pickle models/gpt2.json "$TMPDIR"
cd "$TMPDIR" || exit 3
echo 'model: gpt2' >run.yaml
ln run.yaml hard.yaml
fit() { memplan fit --gpu T4-16G --no-advice --seq 64 "$@"; echo "fit $*: exit status $?"; }
fit --model gpt2 --html a.out --svg a.out
fit --model gpt2 --json -o a.out --program a.out
fit --model gpt2 --snapshot -
fit --model gpt2 --html - -o -
fit --model gpt2 --html - --svg - -o a.out
fit --run run.yaml -o run.yaml
fit --run run.yaml --svg hard.yaml
fit --model ./gpt2.json --program gpt2.json
memplan compare runs.jsonl -o ./runs.jsonl; echo "compare: exit status $?"
memplan replay protocol4.pickle --svg protocol4.pickle; echo "replay: exit status $?"
memplan replay protocol4.pickle --html -; echo "replay: exit status $?"
memplan sweep run.yaml -o run.yaml; echo "sweep: exit status $?"
memplan merge a.csv b.csv -o b.csv; echo "merge: exit status $?"
ls
# and so is what cannot be written
mkdir folder
fit --model gpt2 --html missing/a.html
fit --model gpt2 -o folder
memplan sweep run.yaml -o missing/a.csv; echo "sweep: exit status $?"
# what is allowed: a device for several, and standard output for the one picture
fit --model gpt2 --html /dev/null --svg /dev/null -o /dev/null
fit --model gpt2 -o report.txt --svg - | grep -c '<svg'
