# SPDX-License-Identifier: MIT
# With the job stated, every component has its prediction and every remedy its bytes; one that is no better is not offered.
cat >"$TMPDIR/oom.txt" <<'TEXT'
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.45 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.10 GiB is free.
Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the allocated memory 17.20 GiB is allocated by PyTorch, and
4.50 GiB is reserved by PyTorch but unallocated.
TEXT
memplan diagnose "$TMPDIR/oom.txt" --model gpt2 --gpu RTX4090-24G --batch 16 --seq 1024 | grep -v 'GiB\|MiB\|KiB'
memplan diagnose "$TMPDIR/oom.txt" --model gpt2 --gpu RTX4090-24G --batch 16 --seq 1024 | grep -c 'max_split_size_mb'
