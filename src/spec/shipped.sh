#!/bin/sh
# SPDX-License-Identifier: MIT
# Print a C file that holds the JSON files given as arguments: the table behind src/spec/shipped.h.
# The kind of a file is its folder's name, its name the file's without .json; rows are sorted by both.
set -eu
LC_ALL=C
export LC_ALL

sorted=$(for file in "$@"; do
    folder=${file%/*}
    base=${file##*/}
    printf '%s\t%s\t%s\n' "${folder##*/}" "${base%.json}" "$file"
done | sort)
tab=$(printf '\t')

printf '/* Generated from models/ and configs/. */\n#include "spec/shipped.h"\n\n'
printf 'extern const struct mp_shipped mp_shipped_table[];\nextern const size_t mp_shipped_table_len;\n'

n=0
rows=
while IFS=$tab read -r kind name file; do
    [ -n "$file" ] || continue
    printf '\nstatic const unsigned char text_%d[] = {\n' "$n"
    od -An -v -tu1 "$file" | sed 's/  */,/g; s/^,//; s/$/,/'
    printf '0};\n'
    rows="$rows    {\"$kind\", \"$name\", (const char *)text_$n, sizeof(text_$n) - 1},
"
    n=$((n + 1))
done <<LIST
$sorted
LIST

printf '\nconst struct mp_shipped mp_shipped_table[] = {\n%s    {NULL, NULL, NULL, 0},\n};\n' "$rows"
printf 'const size_t mp_shipped_table_len = %d;\n' "$n"
