# a heat map has a cell for every point, axes with names and values, and the border
printf 'model: gpt2\ngpu: [T4-16G, L4-24G]\nbatch: [1, 16, 64]\nseq: {from: 256, to: 1024, times: 2}\n' >"$TMPDIR/grid.yaml"
cd "$TMPDIR" || exit 3
memplan sweep grid.yaml --heatmap batch,seq -o map.svg
grep -c '<title>' map.svg
grep -o '<title>[^<]*' map.svg | head -3
grep -E 'class="(title|mid name)"' map.svg
grep -c 'class="border" d="M' map.svg
memplan sweep grid.yaml -o map.html
grep -c '<svg' map.html
grep -c '<tr>' map.html
grep -c 'http' map.html
