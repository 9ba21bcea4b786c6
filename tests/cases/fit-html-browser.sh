# pages in headless Chromium: no console errors, hover, keys and zoom work, figures equal --json
command -v python3 >/dev/null || { echo 'python3 is not installed' >&2; exit 77; }
python3 -B tests/browser/check.py || exit $?
echo checked
