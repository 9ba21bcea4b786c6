# SPDX-License-Identifier: MIT
# Not every "out of memory" is device memory, and not every figure can be believed: one report each.
for report in timeout-1eb deepspeed-pin-memory zeropp-calloc-async diffusers-boxed-softmax aria-self-zero-bytes cobra-container-pid \
    liger-wsl-absurd vrt-cpu-116gb crosse-nothing-running allowed-fraction qwen-cublas-two-cards variable-batches-summary; do
    echo "== $report"
    sed '1,/^---$/d' "tests/data/oom/$report.txt" | memplan diagnose | sed -n '1p; /this process/p; /other processes/p; /^  1\. /,/^     /p'
done
