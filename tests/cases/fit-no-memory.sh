# whichever allocation fails: exit status 3 and a reason, or the right answer; never a crash, never half a report
cd "$TMPDIR" || exit 3
printf '{"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 64}' >tiny.json
run() { memplan fit --gpu H200-141G --model ./tiny.json --iterations 1 --json "$@"; }

# STEP [OPTION...]: every STEP-th allocation, until there are no more
fail_each() {
    step=$1
    shift
    run "$@" >right.json || exit 3
    n=1 told=0 quiet=0
    while [ $n -lt 100000 ] && [ $quiet -lt 8 ]; do
        MEMPLAN_FAIL_ALLOC=$n run "$@" >out.json 2>err.txt
        status=$?
        if [ $status -eq 0 ] && cmp -s out.json right.json && [ ! -s err.txt ]; then
            quiet=$((quiet + 1))
        elif [ $status -eq 3 ] && [ ! -s out.json ] && grep -q 'out of memory' err.txt; then
            told=$((told + 1)) quiet=0
        else
            echo "allocation $n: exit status $status, $(wc -c <out.json) bytes"
            cat err.txt
            quiet=0
        fi
        n=$((n + step))
    done
    [ $told -gt 20 ] && echo "failures of allocation 1, $((1 + step)), ...: all told"
}

fail_each 1 --no-advice
fail_each 23
