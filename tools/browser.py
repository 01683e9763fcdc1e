"""A Chromium without a screen, for the dashboard's test and its pictures.

Talks the DevTools protocol through a pipe (--remote-debugging-pipe): no port, and no library. Debian's package
chromium-headless-shell or chromium has the browser."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

PATIENCE = 60.0


def find_browser() -> str | None:
    for name in ("chromium-headless-shell", "chromium"):
        path = shutil.which(name)
        if path:
            return path
    return None


class Browser:
    """One page of a browser of its own. Used by one thread; close() ends the browser."""

    def __init__(self, width: int = 1280, height: int = 900):
        self.folder = tempfile.TemporaryDirectory(prefix="recon-browser-", ignore_cleanup_errors=True)
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()
        # The protocol's ends are descriptors 3 and 4 of the browser.
        command = ["bash", "-c", 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"', "browser", str(to_browser), str(from_browser),
                   find_browser() or "chromium", "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
                   "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                   f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(command, pass_fds=[to_browser, from_browser], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        # What the page's console was told to complain of, and exceptions nobody caught.
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.resize(width, height)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.write_fd)
        os.close(self.read_fd)
        self.folder.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.read_fd, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    def call(self, method: str, **params: object) -> dict[str, Any]:
        self.number += 1
        request: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self.receive(deadline)
            if message.get("id") != self.number:
                self.note(message)
                continue
            if "error" in message:
                raise RuntimeError(f"{method}: {message['error']['message']}")
            return message["result"]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """What the JavaScript expression is, as JSON has it; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def wait(self, expression: str, seconds: float = 30.0) -> Any:
        """Until the expression is true; returns it."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.run(expression)
            if value:
                return value
            if time.monotonic() > deadline:
                raise TimeoutError(f"the page does not come to: {expression}")
            select.select([], [], [], 0.05)

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def set_dark(self, dark: bool) -> None:
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "End": 35, "Home": 36, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def picture(self, path: pathlib.Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
