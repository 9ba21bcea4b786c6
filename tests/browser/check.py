# SPDX-License-Identifier: MIT
"""The pages of `memplan fit --html` in a real browser: nothing on the console, hover, keys and zoom work, figures equal --json.

Usage: check.py [--keep FOLDER]; memplan is taken from PATH. Exit status 77: skipped, for the reason on stderr. With --keep the pages
and pictures of them stay in the folder.
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import webdriver  # noqa: E402

JOBS = {
    "gpt2": ["--model", "gpt2", "--gpu", "A100-80G"],
    "llama3-8b": ["--model", "llama3-8b", "--gpu", "H200-141G", "--precision", "bf16", "--checkpoint", "full"],
    "gpt-175b": ["--model", "gpt-175b", "--gpu", "H100-80G", "--precision", "bf16", "--checkpoint", "full", "--data-parallel", "fsdp2",
                 "--world", "64"],
    "gpt-175b-lives": ["--model", "gpt-175b", "--gpu", "LARGE", "--precision", "bf16", "--checkpoint", "full", "--data-parallel", "fsdp2",
                       "--world", "64"],
    "fragmented": ["--model", "llama3.2-1b", "--gpu", "RTX4090-24G", "--precision", "bf16", "--checkpoint", "full", "--batch", "4"],
}
FITS = {"gpt2": True, "llama3-8b": True, "gpt-175b": False, "gpt-175b-lives": True, "fragmented": False}
failures = []


def check(page, what, good, seen=""):
    if not good:
        failures.append(f"{page}: {what} {seen}".rstrip())


def large_gpu(folder):
    """An H200 with room for all weights of gpt-175b, which are on a card before they are cut: no real card has that."""
    with open(os.path.join("configs", "gpus", "H200-141G.json"), encoding="utf-8") as file:
        gpu = json.load(file)
    gpu["name"] = "H200-480G"
    gpu["total_bytes"] = {"value": 480 << 30, "provenance": "derived"}
    path = os.path.join(folder, "large.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(gpu, file)
    return path


def make_page(name, folder):
    job = [large_gpu(folder) if word == "LARGE" else word for word in JOBS[name]]
    html, svg = os.path.join(folder, name + ".html"), os.path.join(folder, name + ".svg")
    done = subprocess.run(["memplan", "fit", *job, "--html", html, "--svg", svg, "--json"], stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout)
    check(name, "exit status", done.returncode == (0 if FITS[name] else 1), done.returncode)
    check(name, "verdict of --json", report["fits"] == FITS[name])
    check(name, "size", os.path.getsize(html) < 2_000_000, os.path.getsize(html))
    return html, svg, report


def look_up(report, key):
    for part in key.split("."):
        report = report[int(part)] if isinstance(report, list) else report[part]
    return report


def check_figures(browser, name, report):
    figures = browser.script("return [...document.querySelectorAll('data[data-key]')].map(d => [d.dataset.key, d.value, d.textContent]);")
    check(name, "figures", len(figures) > 20, len(figures))
    for key, value, text in figures:
        check(name, key, int(value) == look_up(report, key), f"{value} ({text}) against {look_up(report, key)}")
    sums = browser.script("return [...document.querySelectorAll('#parts tr')].map(r => r.querySelector('.exact data')).filter(d => d)"
                          ".map(d => Number(d.value));")
    check(name, "parts add up", sum(sums[:-1]) == sums[-1], sums)
    peak = browser.script("return document.querySelector('#readout caption').textContent;")
    parts = {part["part"]: part["bytes"] for part in report["parts"]}
    rows = browser.script("return [...document.querySelectorAll('#readout .columns table:first-child tr')].map(r => "
                          "[r.cells[0].textContent.trim(), Number(r.cells[2].textContent.replaceAll(',', ''))]);")
    for part, value in rows:
        check(name, f"readout at the peak, {part}", value == parts.get(part, 0), f"{value} against {parts.get(part)} ({peak})")


def check_timeline(browser, name):
    def where():
        return browser.script("return document.querySelector('#readout .where').textContent;")

    def view():
        return browser.script("const d = document.getElementById('timeline').dataset; return [Number(d.first), Number(d.end)];")

    def value():
        return int(browser.script("return document.getElementById('timeline').getAttribute('aria-valuenow');"))

    last = int(browser.script("return document.getElementById('timeline').getAttribute('aria-valuemax');"))
    at_peak = where()
    browser.point("#timeline", 0.2, 0.4)
    hovered = where()
    check(name, "hover shows another moment", hovered != at_peak, hovered)
    check(name, "hover shows the largest tensors",
          browser.script("return document.querySelectorAll('#readout .columns table:last-child tr').length;") >= 1)
    check(name, "hover draws a line", browser.script("return document.querySelector('#timeline .cursor').getAttribute('visibility');") == "visible")
    browser.keys("#timeline", "Home")
    check(name, "Home", value() == 0, value())
    browser.keys("#timeline", "Right", "Right", "Left")
    check(name, "arrow keys", value() == 1, value())
    browser.keys("#timeline", "End")
    check(name, "End", value() == last, value())
    browser.keys("#timeline", "p")
    check(name, "P goes to the peak", where() == at_peak, where())
    spoken = browser.script("return document.getElementById('timeline').getAttribute('aria-valuetext');")
    check(name, "is spoken", spoken.startswith(at_peak) and "allocated" in spoken, spoken)
    phases = browser.script("return JSON.parse(document.getElementById('data').textContent).timeline.phases;")
    browser.keys("#timeline", "Enter")
    zoomed = view()
    check(name, "Enter zooms to the phase", zoomed in [p[1:] for p in phases] or len(phases) == 1, zoomed)
    browser.screenshot(os.path.join(FOLDER, name + "-zoom.png"), whole=False)
    browser.keys("#timeline", "Escape")
    whole = view()
    check(name, "Escape shows the whole run", whole == [0, phases[-1][2]], whole)
    if len(phases) > 1:
        browser.script("const s = document.getElementById('zoom'); s.value = '1'; s.dispatchEvent(new Event('change'));")
        check(name, "zoom by the list", view() == phases[1][1:] or phases[1][2] - phases[1][1] < 4, view())
        browser.keys("#timeline", "Home", "PageDown", "PageDown")
        browser.click("#whole")
        check(name, "whole run", view() == whole, view())
    browser.point("#timeline", 0.3, 0.5, drag_to=(0.6, 0.5))
    dragged = view()
    check(name, "drag zooms", whole[0] < dragged[0] < dragged[1] < whole[1], dragged)
    moved = browser.script("return document.querySelector('#timeline .plot').getAttribute('transform');")
    check(name, "the plot moves", moved and "NaN" not in moved, moved)
    browser.click("#to-peak")
    first, end = view()
    event = browser.script("const t = JSON.parse(document.getElementById('data').textContent).timeline;"
                           "return t.event.slice(0, t.peak + 1).reduce((a, b) => a + b, 0);")
    check(name, "the peak comes into view", first <= event <= end, [first, event, end])
    if browser.script("return !document.getElementById('scale-label').hidden;"):
        browser.click("#scale")
        limit = browser.script("return document.querySelector('#timeline .y-axis text:last-of-type').textContent;")
        check(name, "scale to what is available", "GiB" in limit, limit)
        browser.click("#scale")
    browser.click("#whole")


def check_map(browser, name):
    def said():
        return browser.script("return document.getElementById('map-readout').textContent;")

    browser.keys("#map", "Home")
    first = said()
    check(name, "map names the segment", first.strip().startswith("Segment 1 of"), first)
    browser.keys("#map", "Down")
    segments = browser.script("return JSON.parse(document.getElementById('data').textContent).map.segments.length;")
    check(name, "next segment", segments == 1 or said().strip().startswith("Segment 2 of"), said())
    browser.keys("#map", "l")
    check(name, "the largest hole", "Hole" in said() or name == "gpt-175b", said())
    box = browser.script("const d = JSON.parse(document.getElementById('data').textContent), g = d.map.geometry,"
                         "v = document.getElementById('map').viewBox.baseVal;"
                         "return [(g.left + 10) / v.width, (g.top + g.row_height / 2) / v.height];")
    browser.point("#map", *box)
    check(name, "hover over the map", said().strip().startswith("Segment 1 of"), said())
    check(name, "what is picked is framed", browser.script("return document.querySelector('#map .picked').getAttribute('d').length;") > 0)


def check_page(browser, name):
    html, svg, report = make_page(name, FOLDER)
    browser.open(html)
    seconds = browser.script("const n = performance.getEntriesByType('navigation')[0]; return n.domComplete / 1000;")
    if "--times" in sys.argv:
        print(f"{name}: {seconds:.2f} s, {os.path.getsize(html)} bytes")
    check(name, "verdict", browser.script("return document.getElementById('verdict').textContent;").startswith(
        "Fits" if FITS[name] else "Does not fit"))
    check_figures(browser, name, report)
    check_timeline(browser, name)
    check_map(browser, name)
    check(name, "names without text", browser.script(
        "return [...document.querySelectorAll('svg:not([aria-hidden])')].every(s => s.querySelector('desc') &&"
        "(s.querySelector('title') || s.getAttribute('aria-label')));"))
    wide = browser.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth;")
    check(name, "the page is not wider than the window", wide <= 0, wide)
    browser.screenshot(os.path.join(FOLDER, name + ".png"))
    check(name, "console", browser.console() == [], browser.console())
    browser.open(svg)
    check(name, "svg parses", browser.script("return document.documentElement.localName;") == "svg")
    check(name, "svg has its phases", browser.script("return document.querySelectorAll('.strips text').length;") >= 2)
    check(name, "console of the svg", browser.console() == [])


def main():
    absent = webdriver.missing()
    if absent:
        print(absent, file=sys.stderr)
        return 77
    with webdriver.Browser() as browser:
        for name in JOBS:
            browser.set_size(1120, 900)
            try:
                check_page(browser, name)
            except RuntimeError as error:  # the page's script stopped
                failures.append(f"{name}: {error} {browser.console()}")
    with webdriver.Browser(width=420, height=800, dark=True) as browser:
        browser.open(os.path.join(FOLDER, "gpt2.html"))
        paper = browser.script("return getComputedStyle(document.body).backgroundColor;")
        check("gpt2", "dark on a dark system", paper == "rgb(22, 25, 28)", paper)
        wide = browser.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth;")
        check("gpt2", "fits a telephone", wide <= 0, wide)
        browser.screenshot(os.path.join(FOLDER, "gpt2-dark.png"))
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if "--keep" in sys.argv:
    FOLDER = sys.argv[sys.argv.index("--keep") + 1]
    os.makedirs(FOLDER, exist_ok=True)
    sys.exit(main())
with tempfile.TemporaryDirectory() as FOLDER:
    sys.exit(main())
