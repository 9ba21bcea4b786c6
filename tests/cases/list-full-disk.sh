# output that cannot be written is a failure of the world, not half an answer
[ -w /dev/full ] || { echo 'no /dev/full' >&2; exit 77; }
memplan list models >/dev/full
