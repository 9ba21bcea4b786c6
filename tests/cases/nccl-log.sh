# What a job chose, from NCCL_DEBUG=INFO output.
memplan nccl --log tests/data/nccl/8xh200.log
memplan nccl --log tests/data/nccl/2x8h100.log
# a job on two H200 (shortened): the buffers that NCCL says it made are the connections of the prediction
memplan nccl --log tests/data/nccl/2xh200.log
sed -n 's/.*Allocated shareable buffer .* size \([0-9]*\) .*/\1/p' tests/data/nccl/2xh200.log | awk '{ n++; sum += $1 } END { print n " buffers, " sum / 1048576 " MiB" }'
