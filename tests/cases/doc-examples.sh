# every command shown in README.md and docs/*.md runs, and prints what is shown; UPDATE=1 writes what it prints now
#
# In ```console blocks a line that begins with "$ " is a command ("\" at its end: the next line goes on), the lines
# after it are its output, both streams; a command without output lines is only run. Indented "    $ " lines are only
# run. They may exit with 0 or 1 (a question answered no). What builds or installs is not run here: its targets and
# scripts must exist. Files that examples speak of lie in the folder they run in.
root=$PWD
folder=$TMPDIR/work
mkdir "$folder" || exit 3
for entry in * .ci; do
    ln -s "$root/$entry" "$folder/$entry"
done
rm -f "$folder/memplan"
cp "$(command -v memplan)" "$folder/memplan" || exit 3 # a copy: a build may replace it meanwhile
PATH=$folder:$PATH
cp models/llama3.2-1b.json "$folder/config.json"
cp tests/data/oom/bbavectors-batch.txt "$folder/train.log"
cp tests/data/nccl/8xh200.log "$folder/nccl.log"
cp tests/data/snapshots/protocol4.pickle "$folder/snapshot.pickle"
head -n 3 validate/results/h200-runs.jsonl >"$folder/measured.jsonl"
export UPDATE="${UPDATE:-}"

cat >"$TMPDIR/examples.awk" <<'AWK'
function told(text) { print FILENAME ":" at ": " text }

# make and .ci commands: the parts must exist
function exists(command,    words, n, i, target) {
    n = split(command, words, /[ &]+/)
    for (i = 1; i <= n; i++) {
        if (words[i] ~ /^\.ci\// && system("test -x " words[i]))
            told("no such script: " words[i])
        if (words[i] == "make" && words[i + 1] ~ /^[a-z]/) {
            target = words[i + 1]
            if (system("grep -q '^## " target ":' Makefile"))
                told("no such target: " target)
        }
    }
}

function run(command,    status, line) {
    got = ""
    failed = 0
    sub(/[ \t]+# .*$/, "", command)
    if (command ~ /^(make|\.ci\/|sudo |python3 |git |man )/) {
        exists(command)
        built = 1
        return
    }
    built = 0
    print command >script
    close(script)
    while ((("sh " script " 2>&1; echo \"status $?\"") | getline line) > 0) {
        if (line ~ /^status [0-9]+$/)
            status = substr(line, 8) + 0
        else
            got = got line "\n"
    }
    close("sh " script " 2>&1; echo \"status $?\"")
    n_run++
    if (status > 1) {
        told("exit status " status ": " command "\n" got)
        failed = 1
    }
}

# The command that is waiting for its output lines has them all.
function finish(    differs) {
    if (command == "")
        return
    run(command)
    differs = expected != "" && !built && !failed && got != expected
    if (differs && ENVIRON["UPDATE"] != 1) {
        told("prints something else: " command)
        printf "%s", expected >(script ".expected")
        printf "%s", got >(script ".got")
        close(script ".expected")
        close(script ".got")
        system("diff " script ".expected " script ".got | head -n 40")
    }
    page = page (differs ? got : expected)
    command = expected = ""
}

{ line = $0 }
/^```console$/ { inside = 1; page = page line "\n"; next }
/^```$/ && inside { finish(); inside = 0; page = page line "\n"; next }
continues { page = page line "\n"; continues = line ~ /\\$/; command = command "\n" line; next }
inside && /^\$ / {
    finish()
    at = FNR
    command = substr(line, 3)
    continues = line ~ /\\$/
    page = page line "\n"
    next
}
inside { expected = expected line "\n"; next }
/^    \$ / { at = FNR; run(substr(line, 7)) }
{ page = page line "\n" }
END {
    if (ENVIRON["UPDATE"] == 1)
        printf "%s", page >target
    if (!n_run && FILENAME == "README.md")
        print "README.md shows no command"
}
AWK

cd "$folder" || exit 3
for page in README.md docs/*.md; do
    awk -v script="$TMPDIR/command" -v target="$TMPDIR/page" -f "$TMPDIR/examples.awk" "$page"
    if [ "$UPDATE" = 1 ] && ! cmp -s "$TMPDIR/page" "$page"; then
        cp "$TMPDIR/page" "$root/$page"
    fi
done
echo checked
