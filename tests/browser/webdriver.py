# SPDX-License-Identifier: MIT
"""A headless Chromium by way of chromedriver, as much of WebDriver as the tests need; Python's standard library only."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of WebDriver's element references
KEYS = {"Left": "\ue012", "Right": "\ue014", "Up": "\ue013", "Down": "\ue015", "PageUp": "\ue00e", "PageDown": "\ue00f",
        "Home": "\ue011", "End": "\ue010", "Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004"}


def missing():
    """What is not installed, in words; None: nothing."""
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return None


class Browser:
    """with Browser() as browser: browser.open(path); the process ends with the block."""

    def __init__(self, width=1120, height=900, dark=False):
        self.profile = tempfile.mkdtemp(prefix="memplan-browser-")
        self.log = open(os.path.join(self.profile, "driver.log"), "w+")
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=self.log, stderr=subprocess.STDOUT)
        self.session = None
        self.base = f"http://127.0.0.1:{self._port()}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--window-size={width},{height}", f"--user-data-dir={self.profile}/profile"]
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options = {"args": arguments, "binary": shutil.which("chromium")}
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/session/" + answer["sessionId"]

    def _port(self):
        for _ in range(300):
            self.log.flush()
            with open(self.log.name) as text:
                for line in text:
                    if "on port " in line and "successfully" in line:
                        return int(line.rsplit("on port ", 1)[1].rstrip(". \n"))
            if self.driver.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError("chromedriver did not start")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.session:
            self._call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait()
        self.log.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _call(self, method, path, body=None):
        data = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, path):
        self._call("POST", self.session + "/url", {"url": "file://" + os.path.abspath(path)})

    def script(self, text, *arguments):
        return self._call("POST", self.session + "/execute/sync", {"script": text, "args": list(arguments)})

    def console(self):
        """Messages since the last call."""
        return self._call("POST", self.session + "/se/log", {"type": "browser"})

    def keys(self, selector, *keys):
        element = self._call("POST", self.session + "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"{self.session}/element/{element[ELEMENT]}/value", {"text": "".join(KEYS.get(key, key) for key in keys)})

    def click(self, selector):
        element = self._call("POST", self.session + "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"{self.session}/element/{element[ELEMENT]}/click")

    def point(self, selector, x, y, drag_to=None):
        """Move the pointer to a fraction of an element's box; press there and release at another, if one is given."""
        box = self.script("const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
                          "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height];", selector)

        def move(fx, fy):
            return {"type": "pointerMove", "duration": 0, "x": round(box[0] + fx * box[2]), "y": round(box[1] + fy * box[3])}

        actions = [move(x, y)]
        if drag_to:
            middle = ((x + drag_to[0]) / 2, (y + drag_to[1]) / 2)
            actions += [{"type": "pointerDown", "button": 0}, move(*middle), move(*drag_to), {"type": "pointerUp", "button": 0}]
        self._call("POST", self.session + "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def set_size(self, width, height):
        self._call("POST", self.session + "/window/rect", {"width": width, "height": height})

    def screenshot(self, path, whole=True):
        """The page as PNG: all of it, or what the window shows."""
        if whole:
            height = self.script("return document.documentElement.scrollHeight;")
            width = self.script("return window.innerWidth;")
            self.set_size(width, min(height + 20, 12000))
        with open(path, "wb") as out:
            out.write(base64.b64decode(self._call("GET", self.session + "/screenshot")))

    def screenshot_of(self, path, x, y, width, height):
        """A rectangle of the page as PNG, whether the window shows it or not."""
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        answer = self._call("POST", self.session + "/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": {
            "format": "png", "captureBeyondViewport": True, "clip": clip}})
        with open(path, "wb") as out:
            out.write(base64.b64decode(answer["data"]))
