# Claims of users, one command each (docs/nccl.md).
total() { sed -n 's/^ *"rank_bytes": \([0-9]*\).*/\1/p'; }
one() { memplan nccl --gpu H200-141G --json "$@" | total; }
echo "16 nodes  $(one --nodes 16 --collectives allreduce)"
echo "128 nodes $(one --nodes 128 --collectives allreduce)"
echo "NCCL_BUFFSIZE 4 MiB $(one --nvls off --collectives allreduce)"
echo "NCCL_BUFFSIZE 8 MiB $(one --nvls off --collectives allreduce --env NCCL_BUFFSIZE=8388608)"
echo "NCCL_PROTO=LL       $(one --nvls off --collectives allreduce --env NCCL_PROTO=LL)"
