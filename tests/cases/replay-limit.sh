# which settings would have lived in less memory, and where the others die
memplan replay tests/data/traces/m-122-llama3.2-1b.txt.gz --limit 18GiB
