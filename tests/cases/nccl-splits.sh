# Three groups of one node, of their own and as splits that share the world's buffers.
memplan nccl --gpu H200-141G --nvls off --groups world,dp,tp:2 --collectives allreduce
memplan nccl --gpu H200-141G --nvls off --groups world,dp,tp:2 --collectives allreduce --env NCCL_COMM_SPLIT_SHARE_RESOURCES=1
