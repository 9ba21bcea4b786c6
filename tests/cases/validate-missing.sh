# without memplan-validate beside it: exit 3 and the way out; the one in the current folder is not taken
cp "$(command -v memplan)" "$TMPDIR/memplan"
cd "$TMPDIR" || exit 3
printf '#!/bin/sh\necho wrong\n' >memplan-validate.sh
mkdir here && cp memplan-validate.sh here/memplan-validate && chmod +x here/memplan-validate
(cd here && ../memplan validate probe)
echo "exit $?"
# beside it: its arguments and its exit status are handed on
printf '#!/bin/sh\necho "asked for: $*"\nexit 1\n' >memplan-validate
chmod +x memplan-validate
./memplan validate train job.jsonl --check
echo "exit $?"
mkdir -p bin libexec/memplan && cp memplan bin/memplan && mv memplan-validate libexec/memplan/
bin/memplan validate replay job.jsonl
echo "exit $?"
bin/memplan validate
echo "exit $?"
