# outside of shadow/card.c only questions, functions of (gpu, args), read the card: what a run depends on is what it asked
grep -E '(->|\.)gpu\b' src/shadow/*.[ch] src/arch/*.[ch] src/train/*.[ch] | grep -v '^src/shadow/card'
