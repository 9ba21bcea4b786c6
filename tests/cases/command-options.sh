# every way to get an option wrong is told in one line, with the way out
try() { memplan "$@" 2>&1 >"$TMPDIR/out" | head -n 1; }
try fit --bacth 3
try fit --batch
try fit --se 3
try fit -x
try fit --json=3
try fit extra
try fit --batch -1
try fit --batch 2147483648
try fit --precision bf61
try fit --used 1G
try fit --allocator-conf max_split:3
try fit --checkpoint '{layers: [-1]}'
try fit --tf32=maybe
memplan fit --batch 0 >/dev/null 2>&1
echo "exit status $?"
