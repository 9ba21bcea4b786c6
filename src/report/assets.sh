#!/bin/sh
# SPDX-License-Identifier: MIT
# Print a C file that holds the files given as arguments: the texts behind src/report/assets.h. report.css becomes
# mp_asset_report_css.
set -eu
LC_ALL=C
export LC_ALL

printf '/* Generated from src/report/assets/. */\n#include "report/assets.h"\n'
for file in "$@"; do
    name=$(printf '%s' "${file##*/}" | tr -c 'a-z0-9' _)
    printf '\nconst char mp_asset_%s[] = {\n' "$name"
    od -An -v -tu1 "$file" | sed 's/  */,/g; s/^,//; s/$/,/'
    printf '0};\n'
done
