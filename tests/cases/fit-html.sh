# a page and a picture of a job beside its report; each is one file that fetches nothing
page=$TMPDIR/report.html
picture=$TMPDIR/timeline.svg

memplan fit --model gpt2 --gpu A100-80G --no-advice --html "$page" --svg "$picture" | grep -c '^Fits: gpt2'
[ "$(wc -c <"$page")" -lt 2000000 ] && echo 'the page goes through a mail'
grep -o '<title>gpt2[^<]*</title>' "$page"
grep -o '<h2 id="[a-z-]*">[^<]*' "$page" | sed 's/.*>//'
grep -c 'src=\|href=\|@import' "$page"
grep -o '<title>[^<]*</title>' "$picture"

# The verdict does not depend on the pictures, nor do these on the verdict.
memplan fit --model gpt-13b --gpu T4-16G --no-advice --html "$page" >"$TMPDIR/text"
echo "status $?"
grep -o '<title>gpt-13b[^<]*</title>' "$page"
grep -c 'id="failure"' "$page"

memplan fit --model gpt2 --gpu A100-80G --no-advice --html "$TMPDIR/no/such/folder.html" >"$TMPDIR/text" 2>"$TMPDIR/message"
echo "status $?"
sed "s|$TMPDIR|TMPDIR|g" "$TMPDIR/message"
