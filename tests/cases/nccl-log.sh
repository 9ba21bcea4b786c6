# What a job chose, from NCCL_DEBUG=INFO output.
memplan nccl --log tests/data/nccl/8xh200.log
memplan nccl --log tests/data/nccl/2x8h100.log
