# SPDX-License-Identifier: MIT
"""Make the pictures of README and docs anew: pictures.py docs/pictures; memplan is taken from PATH."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import webdriver  # noqa: E402

GPT2 = ["--model", "gpt2", "--gpu", "A100-80G", "--batch", "8"]
FRAGMENTED = ["--model", "llama3.2-1b", "--gpu", "RTX4090-24G", "--precision", "bf16", "--checkpoint", "full", "--batch", "4"]


def fit(job, *outputs):
    subprocess.run(["memplan", "fit", "--no-advice", *job, *outputs], stdout=subprocess.DEVNULL, check=False)


def picture(browser, page, first, last, path):
    """The page from one element to another."""
    browser.set_size(1120, 900)
    browser.open(page)
    top, bottom = browser.script("const t = document.querySelector(arguments[0]).getBoundingClientRect().top,"
                                 "b = document.querySelector(arguments[1]).getBoundingClientRect().bottom;"
                                 "return [t + scrollY, b + scrollY];", first, last)
    browser.screenshot_of(path, 24, top - 8, 1072, bottom - top + 10)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        page = os.path.join(work, "page.html")
        fit(GPT2, "--svg", os.path.join(folder, "timeline.svg"))
        fit(FRAGMENTED, "--html", page)
        with webdriver.Browser() as browser:
            picture(browser, page, "h1", "#timeline", os.path.join(folder, "report.png"))
            picture(browser, page, "#map-heading", "#map", os.path.join(folder, "memory-map.png"))


main(sys.argv[1])
