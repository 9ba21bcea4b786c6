# nothing fits: with a proof, and what would
memplan plan --model llama2-7b --gpu A100-80G --seq 4096
