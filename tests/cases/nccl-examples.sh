# The worked examples of docs/nccl.md: bytes of one rank's communicator in MiB, at init and low and high after use.
n() {
    gpu=$1
    shift
    printf '%-100s' "--gpu $gpu $*"
    memplan nccl --gpu "$gpu" --json "$@" | awk -F '[:,]' '
        /"init_bytes"/ && !init { init = $2 } /"after_use_low_bytes"/ { low = $2 } /"after_use_high_bytes"/ { high = $2 }
        END { printf "%5d %5d %5d\n", init / 1048576, low / 1048576, high / 1048576 }'
}
off='--nvls off'
# shellcheck disable=SC2086
{
    n H200-141G --gpus-per-node 2 $off --collectives allreduce
    n H200-141G --gpus-per-node 2 $off --collectives allreduce,sendrecv
    n H200-141G --gpus-per-node 2 --collectives allreduce
    n H200-141G --gpus-per-node 2 --algorithms NVLS
    n H200-141G $off --collectives allreduce
    n H200-141G $off --collectives allreduce,alltoall
    n H200-141G --collectives allreduce
    n H200-141G --algorithms Ring,NVLS --collectives alltoall
    n B200-180G --collectives allreduce
    n H200-141G --nodes 4 $off --collectives allgather,reducescatter
    n H200-141G --nodes 4 --collectives allgather,reducescatter
    n H200-141G --nodes 4 --algorithms NVLSTree
    n H200-141G --nodes 4 --algorithms Ring,Tree,NVLSTree
    n H200-141G --nodes 4 $off --algorithms Ring,Tree
    n H200-141G --nodes 4 --collectives allreduce
    n H200-141G --nodes 4 $off --collectives alltoall
    n H200-141G --nodes 4 --collectives alltoall
    n H200-141G --nodes 4 $off --collectives alltoall --env NCCL_PXN_DISABLE=1
    n H200-141G --nodes 8 $off --collectives alltoall
    n H200-141G $off --collectives allreduce --env NCCL_BUFFSIZE=8388608
    n H200-141G $off --collectives alltoall --env NCCL_BUFFSIZE=8388608
    n H200-141G --nodes 4 $off --collectives allgather --env NCCL_BUFFSIZE=8388608
    n H200-141G $off --collectives allreduce --env NCCL_BUFFSIZE=1048576
    n H200-141G $off --collectives allreduce --env NCCL_P2P_DISABLE=1
    n H200-141G --collectives allreduce --env NCCL_P2P_DISABLE=1
    n H200-141G --collectives allgather --env NCCL_MAX_CTAS=8
    n H200-141G $off --collectives alltoall --env NCCL_MAX_CTAS=8
    n H200-141G --gpus-per-node 1
    n H200-141G --gpus-per-node 1 --env NCCL_RUNTIME_CONNECT=0
    n H200-141G --gpus-per-node 1 --env NCCL_CUMEM_ENABLE=0
    n H200-141G --gpus-per-node 2 $off --collectives sendrecv
    n H200-141G --nodes 2 --algorithms Ring,Tree,NVLSTree
    n H200-141G --nodes 16 --algorithms Ring,Tree,NVLSTree
    n H200-141G --nodes 4 --gpus-per-node 4 $off --algorithms Ring,Tree
    n H200-141G --nodes 4 --gpus-per-node 2 $off --algorithms Ring,Tree
    n H200-141G --nodes 16 --gpus-per-node 1 --algorithms Ring,Tree
    n A100-80G --nccl-version 2.18.3 --gpus-per-node 2 --collectives allreduce
    n A100-80G --nccl-version 2.18.3 --gpus-per-node 4 --collectives allreduce
    n H200-141G --nccl-version 2.20.5 --algorithms NVLS
    n RTX3090-24G --gpus-per-node 1
    n RTX3090-24G --gpus-per-node 1 --env NCCL_RUNTIME_CONNECT=0
}
