# Bad input: one line that names the place, the value and the way out; exit status 2.
try() { memplan nccl "$@"; echo "exit $?" >&2; }
h200() { try --gpu H200-141G "$@"; }
try
h200 --nodes 100000
h200 --nodes 0
h200 --gpus-per-node 1000
try --gpu H200
h200 --env NCCL_BUFSIZE=1
h200 --env NCCL_BUFFSIZE=8M
h200 --env NCCL_MAX_NCHANNELS=100
h200 --env NCCL_TOPO_FILE=x.xml
h200 --groups tp:3
h200 --groups dp,pp
h200 --groups tp:8,tp:2
h200 --groups tp:
h200 --groups pp:4/8
h200 --gpus-per-node 6 --groups dp,tp:4
h200 --collectives allsum
h200 --collectives pp=allreduce
h200 --collectives allgather --env NCCL_ALGO=Tree
h200 --nccl-version 2.12
h200 --channels 24,32
h200 --fabric mesh
h200 --log tests/data/nccl/8xh200.log --groups dp
try --log tests/data/nccl/not-a-log.txt
try --log tests/data/nccl/no-communicator.log
try --log tests/data/nccl/missing.log
