# what cannot be read says so
printf '\200\004cos\nsystem\n(tR.' >"$TMPDIR/x.pickle"
cd "$TMPDIR" || exit 3
memplan replay x.pickle; echo "exit $?"
memplan replay none.txt; echo "exit $?"
printf 'alloc zz 1 0\n' >bad.txt
memplan replay bad.txt; echo "exit $?"
printf 'alloc 1000 1 0\n' >one.txt
memplan replay one.txt --conf max_split_size:128; echo "exit $?"
memplan replay one.txt --conf backend:cudaMallocAsync; echo "exit $?"
memplan replay one.txt --torch 1.9; echo "exit $?"
memplan replay one.txt --torch 2.0 --conf expandable_segments:True; echo "exit $?"
head -c 20000 "$OLDPWD/tests/data/traces/m-002-tinyllama-1.1b.txt.gz" >cut.txt.gz
memplan replay cut.txt.gz; echo "exit $?"
