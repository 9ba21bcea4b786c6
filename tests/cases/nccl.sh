# Two groups on four nodes, with larger buffers: bytes of one rank by group and by part.
memplan nccl --gpu H200-141G --nodes 4 --gpus-per-node 8 --env NCCL_BUFFSIZE=8388608 --groups dp,tp:8 --collectives allreduce,alltoall
