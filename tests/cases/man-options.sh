# the man page has exactly the commands, options and exit statuses that --help has
page=docs/man/memplan.1
help=$TMPDIR/help
man=$TMPDIR/man

# Options that a help text lists, one name a line.
options() { sed -n 's/^  *\(-[a-zA-Z], \)\{0,1\}--\([a-z][a-z0-9-]*\).*/\2/p' | sort -u; }

# Options of a subsection of the page: ".It Fl -name Ar X", ".It Fl o , Fl -name".
section() {
    awk -v title="$1" '
        /^\.S[hs] / { inside = substr($0, 5) == title }
        inside && /^\.It Fl / {
            for (i = 3; i <= NF; i++)
                if ($i ~ /^-[a-z]/) { print substr($i, 2); break }
        }' "$page"
}

memplan help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p' | sort >"$help"
sed -n 's/^\.Ss memplan \([a-z]*\)$/\1/p' "$page" | sort >"$man"
diff -u --label 'commands of memplan help' --label "$page" "$help" "$man"

for command in $(cat "$help"); do
    memplan "$command" --help >"$TMPDIR/text"
    options <"$TMPDIR/text" | grep -vx help >"$TMPDIR/of-help"
    {
        section "memplan $command"
        if grep -q '^Run spec ' "$TMPDIR/text"; then
            section 'Run spec'
        fi
    } | sort >"$TMPDIR/of-page"
    diff -u --label "memplan $command --help" --label "$page" "$TMPDIR/of-help" "$TMPDIR/of-page"
done

# One release, one version; and clean where there is mandoc.
version=$(memplan --version | sed -n 's/^memplan //p')
grep -q "^\.Os memplan $version\$" "$page" || echo "$page: .Os is not memplan $version"
if command -v mandoc >/dev/null; then
    mandoc -T lint -W warning "$page"
fi
echo checked
