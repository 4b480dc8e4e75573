"""A headless Chromium that a test drives by its debugging protocol, through a pipe: no driver, no further package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
#: Seconds that an answer may take on a machine that has other work.
PATIENCE_S = 180.0
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe")


class Page:
    """One page. `complaints` are errors on its console, `requests` the addresses it asked for."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing, self._buffer, self._last, self._session = reading, writing, b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Ask the browser for something and wait for its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            self._note(answer.get("method", ""), answer.get("params", {}))
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, path: Path, width: int = 1400, height: int = 900, *, scheme: str = "light") -> None:
        """Load a file in a window of that size, under a colour scheme of the system."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._go("about:blank")
        self.complaints, self.requests = [], []
        self._go(path.as_uri())

    def _go(self, address: str) -> None:
        self._loaded = False
        self.call("Page.navigate", url=address)
        while not self._loaded:
            event = self._next()
            self._note(event.get("method", ""), event.get("params", {}))

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def key(self, key: str) -> None:
        """Press and release a key where the focus is."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"Enter": 13, " ": 32, "Tab": 9}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif (method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning")) or (
            method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")
        ):
            self.complaints.append(str(params))

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            got = os.read(self._reading, 1 << 20)
            assert got, "the browser has ended"
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser of its own, with its profile in that folder; it ends with the block."""
    assert CHROMIUM is not None
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    # The protocol is spoken on descriptors 3 and 4.
    plug = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    command = ["bash", "-c", plug, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"]
    with subprocess.Popen(
        command, pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        os.close(to_read)
        os.close(from_write)
        try:
            yield Page(from_read, to_write)
        finally:
            os.close(to_write)
            os.close(from_read)
            process.terminate()
