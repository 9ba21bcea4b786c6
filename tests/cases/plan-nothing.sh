# the largest micro-batch with every block recomputed, not some smaller one
memplan plan --model gpt2 --gpu T4-16G --batch 64 --used 3GiB | grep -- --batch
memplan plan --model gpt2 --gpu T4-16G --batch 13 --used 3GiB | head -n 1
# nothing fits: with a proof, and what would
memplan plan --model llama2-7b --gpu A100-80G --seq 4096
