# The same facts for programs: exact integers, parts that add up.
memplan nccl --gpu H200-141G --gpus-per-node 2 --env NCCL_NVLS_ENABLE=0 --collectives allreduce --json
