# zsh and fish scripts know the options, and where the shell is there it takes them; an unknown shell is told
memplan completion zsh | head -n 1
memplan completion zsh | grep -q -- "'--json" && echo 'zsh knows --json'
memplan completion fish | grep -q -- '-l json' && echo 'fish knows --json'
for shell in zsh fish; do
    if command -v $shell >/dev/null; then memplan completion $shell | $shell -n || echo "$shell refuses it"; fi
done
memplan completion tcsh
