# SPDX-License-Identifier: MIT
# More is allocated than the stated job needs: something is kept.
echo 'Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 100.00 MiB is free. Including non-PyTorch memory,
this process has 23.40 GiB memory in use. Of the allocated memory 22.50 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch
but unallocated.' | memplan diagnose --model gpt2 --gpu RTX4090-24G --batch 2 --seq 512 | sed -n '/^stated/p; /^  1\. /p'
