# a recorded run under the usual settings; expandable segments would have saved memory
memplan replay tests/data/traces/m-120-gpt2-355m.txt.gz
