# the answer is no: exit status 1
memplan replay tests/data/traces/m-122-llama3.2-1b.txt.gz --limit 8GiB --conf expandable_segments:True
