# help comes from the option table and fits 80 columns
memplan list --help
memplan list --help >"$TMPDIR/help"
memplan help list | cmp - "$TMPDIR/help" && echo "help list is list --help"
memplan help | awk 'length > 80 { print "too wide: " $0 }'
