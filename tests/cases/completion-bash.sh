# the script is sound, and completes commands, operands and options
command -v bash >/dev/null || { echo 'no bash' >&2; exit 77; }
memplan completion bash >"$TMPDIR/memplan.bash"
bash -n "$TMPDIR/memplan.bash" && echo sound
bash -c '
compopt() { :; }
source "$1"
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _memplan; echo "$*:" "${COMPREPLY[@]}"; }
try memplan li
try memplan list mo
try memplan list --js
try memplan completion ""
' bash "$TMPDIR/memplan.bash"
