# SPDX-License-Identifier: MIT
# The same facts for programs; figures that the text does not give are null.
sed '1,/^---$/d' tests/data/oom/llamafactory-occupied.txt | memplan diagnose - --json
