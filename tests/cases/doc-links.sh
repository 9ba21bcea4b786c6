# links between documents lead somewhere, and files that documents name exist
for page in README.md docs/*.md; do
    folder=$(dirname "$page")
    # [text](path#part)
    grep -o '](\([^)]*\))' "$page" | sed 's/^](//; s/)$//; s/#.*//' | sort -u | while read -r link; do
        case $link in
        '' | *://*) ;;
        *) [ -e "$folder/$link" ] || echo "$page: no such file: $link" ;;
        esac
    done
    # `src/shadow/ops.h`, `tests/data/nccl/`; words with wildcards or placeholders are patterns
    grep -o '`\(src\|tests\|docs\|configs\|models\|validate\|\.ci\)/[^` ]*`' "$page" | tr -d '`' | sort -u | while read -r file; do
        case $file in
        *[A-Z*]*) case $file in *H200-* | *RTX* | *README*) [ -e "$file" ] || echo "$page: no such file: $file" ;; esac ;;
        *) [ -e "$file" ] || echo "$page: no such file: $file" ;;
        esac
    done
done
echo checked
