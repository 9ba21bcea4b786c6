# what is not the card's to give: a cap, and what others hold
verdict() { memplan fit --gpu H200-141G --model gpt2 --seq 512 --no-advice --json "$@" | grep -E '"fits"|"available_bytes": (4294967296|1073741824)'; }
verdict --allocator-limit-bytes 4GiB
verdict --allocator-limit-bytes 1GiB
verdict --used 20GiB
verdict --used 139GiB
