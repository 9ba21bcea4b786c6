# SPDX-License-Identifier: MIT
# What cannot be read is said; an empty text is an answer.
memplan diagnose /nonexistent/train.log; echo "status $?"
memplan diagnose a b; echo "status $?"
memplan diagnose --snapshot /nonexistent/oom.pickle; echo "status $?"
cd "$TMPDIR" || exit 3
printf "\\200\\004garbage" >bad.pickle
memplan diagnose bad.pickle; echo "status $?"
echo x | memplan diagnose --model gpt2 --gpu NOSUCH; echo "status $?"
memplan diagnose </dev/null | sed -n '1p; /^  1\. /p'; echo "status $?"
