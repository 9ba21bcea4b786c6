# SPDX-License-Identifier: MIT
# A real message with everything: figures that add up, ranked causes, remedies.
sed '1,/^---$/d' tests/data/oom/slime-log-probs.txt | memplan diagnose
