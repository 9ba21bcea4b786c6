# a run file's problems are listed together; unreadable, empty and foreign files are told
cat >"$TMPDIR/run.yaml" <<'YAML'
model: gpt2
gpu: H200-141G
batchs: 4
seq: -1
precision: amp
tf32: 1
YAML
cd "$TMPDIR" || exit 3
memplan fit --run run.yaml
echo "exit status $?"
: >empty.yaml
memplan fit --run empty.yaml
echo "exit status $?"
memplan fit --run missing.yaml
echo "exit status $?"
mkdir folder
memplan fit --run folder
echo "exit status $?"
memplan fit --model folder --gpu T4-16G
echo "exit status $?"
memplan fit --model gpt2 --gpu T4
echo "exit status $?"
memplan fit --model gpt2 --gpu T4-16G --seq 1025
echo "exit status $?"
memplan fit --model gpt2 --gpu T4-16G --lora '{rank: 8}'
echo "exit status $?"
