# sizes, lengths and settings that cannot be: batch, seq, allocator string, limits, layers, lists
bad() {
    memplan fit --gpu H200-141G --no-advice "$@"
    echo "exit status $?"
}
bad --model gpt2 --batch 0
bad --model gpt2 --batch -1
bad --model gpt2 --batch 2147483648
bad --model gpt2 --batch 99999999999999999999
bad --model gpt2 --batch 1.5
bad --model gpt2 --batch four
bad --model gpt2 --seq 2147483648
bad --model gpt2 --seq 1025
bad --model bert-base --seq 513
bad --model gpt2 --seq-lengths 512,2048
bad --model gpt2 --seq-lengths 512,,3
bad --model gpt2 --seq-lengths ''
bad --model llama3.2-1b --batch 2147483647 --seq 2147483647
bad --model gpt2 --accumulate 0
bad --model gpt2 --iterations -3
bad --model gpt2 --precision int8
bad --model gpt2 --optimizer adam
bad --model gpt2 --checkpoint '{layers: [12]}'
bad --model gpt2 --allocator-conf max_split_size:128
bad --model gpt2 --allocator-conf max_split_size_mb:lots
bad --model gpt2 --allocator-conf max_split_size_mb
bad --model gpt2 --allocator-conf garbage_collection_threshold:1.5
bad --model gpt2 --allocator-limit-bytes 80G
bad --model gpt2 --allocator-limit-bytes -1GiB
bad --model gpt2 --used 20EiB
bad --model gpt2 --pad-to -8
bad --model gpt2 --no-such-flag
bad --model gpt2 extra
bad --model gpt2 --gpu H300
bad --gpu
