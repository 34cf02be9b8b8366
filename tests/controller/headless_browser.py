"""A real browser without a window: Chromium, spoken to by its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import image
from numpy.typing import NDArray

from inaproto.errors import Unsupported
from tests.conftest import end_without

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
ANSWER_S: Final = 90.0
_READ: Final = 1 << 16
_PIPES: Final = """
import fcntl, os, sys
orders, answers = map(int, sys.argv[1:3])
orders, answers = (fcntl.fcntl(one, fcntl.F_DUPFD, 5) for one in (orders, answers))
os.dup2(orders, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The protocol is spoken over the descriptors 3 and 4."""


class Browser:
    """One page. ``complaints``: what the console said, or could not be loaded."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders, self._answers = orders, answers
        self._buffer = b""
        self._id = 0
        self._session = ""
        self._loaded = False
        self.complaints: list[str] = []

    def open(self, url: str, *, width: int, height: int, is_dark: bool = False) -> None:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self.go(url)

    def go(self, url: str) -> None:
        """From the page that is open."""
        self._loaded = False
        self._ask("Page.navigate", url=url)
        deadline = time.monotonic() + ANSWER_S
        while not self._loaded:
            self._heard(self._next(deadline))

    def look(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it comes to."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Of JavaScript, within the time for an answer."""
        self.look(f"new Promise(d => {{ const f = () => ({condition}) ? d() : setTimeout(f, 20); f(); }})")

    def screenshot(self, of: str = "") -> NDArray[np.uint8]:
        """(rows, columns, 3) of the whole page, or of the first element of a selector."""
        clip: dict[str, Any] = {}
        if of:
            x, y, width, height = self.look(
                f"(b => [b.x + scrollX, b.y + scrollY, b.width, b.height])"
                f"(document.querySelector({json.dumps(of)}).getBoundingClientRect())"
            )
            clip["clip"] = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        found = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, **clip)
        pixels = image.imread(io.BytesIO(base64.b64decode(found["data"])), format="png")
        colours: NDArray[np.uint8] = np.rint(pixels[:, :, :3] * 255).astype(np.uint8)
        return colours

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._id += 1
        order = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            message = self._next(deadline)
            if message.get("id") == self._id:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self._heard(message)

    def _heard(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Network.loadingFailed":
                self.complaints.append(json.dumps(message["params"]))
            case _:
                pass

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            ready = select.select([self._answers], [], [], max(0.0, left))[0]
            assert ready, f"the browser gave no answer within {ANSWER_S:g} s"
            data = os.read(self._answers, _READ)
            assert data, "the browser has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


def chromium() -> Path:
    """Ends the test with a typed reason where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        end_without("chromium", Unsupported("chromium", "not on PATH; for example: apt install chromium"))
    return Path(found)


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """``directory``: for what it writes."""
    program = chromium()
    orders_out, orders_in = os.pipe()
    answers_out, answers_in = os.pipe()

    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    words += [
        "--force-color-profile=srgb",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
    ]
    words += ["--remote-debugging-pipe", f"--user-data-dir={directory / 'profile'}", "--hide-scrollbars"]
    process = subprocess.Popen(
        [sys.executable, "-c", _PIPES, str(orders_out), str(answers_in), program, *words, "about:blank"],
        pass_fds=(orders_out, answers_in),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory)},
        start_new_session=True,
    )
    os.close(orders_out)
    os.close(answers_in)
    try:
        yield Browser(orders_in, answers_out)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(ANSWER_S)
        os.close(orders_in)
        os.close(answers_out)
