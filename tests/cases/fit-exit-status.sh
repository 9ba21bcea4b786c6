# 0 fits, 1 does not fit, 2 bad input, 3 the world failed
cd "$TMPDIR" || exit 3
memplan fit --gpu H200-141G --model gpt2 >/dev/null; echo "fits: $?"
memplan fit --gpu T4-16G --model gpt-1.3b >/dev/null; echo "does not fit: $?"
memplan fit --gpu T4-16G --model gpt-1.3b --no-advice --json | grep -E '"fits"|"failure"'
memplan fit --gpu T4-16G --model gpt-1.3b --max-batch >/dev/null; echo "not even one: $?"
memplan fit --gpu RTX4090-24G --model gpt2 --max-batch --no-advice --json | grep -E '"fits"|"max_batch"' | sed 's/: [1-9][0-9]*/: N/'
memplan fit --gpu H200-141G --model gpt2 -o missing/report.txt; echo "cannot write: $?"
memplan fit --gpu H200-141G --model gpt2 -o report.txt; echo "written: $?"
head -n 1 report.txt | cut -c 1-8
[ -w /dev/full ] && memplan fit --gpu H200-141G --model gpt2 >/dev/full; echo "full disk: $?"
