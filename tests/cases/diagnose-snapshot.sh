# SPDX-License-Identifier: MIT
# A recording alone: steps that keep 2 MiB each, then a request that finds no room.
awk 'BEGIN {
    print "segment_alloc 7f0000000000 2147483648 0"
    for (step = 0; step < 100; step++) {
        for (i = 0; i < 8; i++) printf "alloc 7f%010x 4194304 0\n", (step * 8 + i) * 4194304 % 536870912 + 1073741824
        for (i = 0; i < 8; i++) { a = sprintf("7f%010x", (step * 8 + i) * 4194304 % 536870912 + 1073741824)
            printf "free_requested %s 4194304 0\nfree_completed %s 4194304 0\n", a, a }
        printf "alloc 7f%010x 2097152 0\n", step * 2097152
    }
}' >"$TMPDIR/trace.txt"
memplan diagnose --snapshot "$TMPDIR/trace.txt"
