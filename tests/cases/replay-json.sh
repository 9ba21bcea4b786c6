# exact numbers, stable keys
memplan replay tests/data/traces/m-131-gpt2-355m-exp.txt.gz --json --conf '' | sed -n '1,40p;/"num_/p'
