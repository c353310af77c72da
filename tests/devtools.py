"""A browser that is spoken to while it runs (Chrome DevTools protocol over a pipe; standard library only)."""

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser import CHROMIUM


class Tab:
    """One open page; `problems` holds whatever its console complained of."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._buffer, self._count, self._session = b"", 0, None
        self.problems: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command and its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _receive(self, seconds: float = 120) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], seconds)
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._in, 1 << 20)
        message, self._buffer = self._buffer.split(b"\0", 1)
        event = json.loads(message)
        details = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            thrown = details["exceptionDetails"]
            self.problems.append(thrown.get("exception", {}).get("description", thrown["text"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.problems.append(str(details["args"]))
        elif event.get("method") == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(details["entry"]["text"])
        return event

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def show(self, width: int, height: int, theme: str = "light", motion: str = "no-preference") -> None:
        """The size of the window, and what its owner prefers."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        wishes = {"prefers-color-scheme": theme, "prefers-reduced-motion": motion}
        self.call("Emulation.setEmulatedMedia", features=[{"name": k, "value": v} for k, v in wishes.items()])

    def open(self, address: str) -> None:
        """Go somewhere, and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def run(self, code: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Until an expression holds."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"{condition} did not become true"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """A key, pressed and released."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS.get(key, 0))

    def mouse(self, kind: str, x: float, y: float, buttons: int = 0) -> None:
        """mousePressed, mouseMoved or mouseReleased."""
        button = "left" if buttons or kind == "mouseReleased" else "none"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    def picture(self, path: Path) -> None:
        """What is seen now, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35}


@contextmanager
def open_tab(profile: Path) -> Iterator[Tab]:
    """A tab in a browser of its own, which ends with the block."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    # The protocol is spoken on descriptors 3 and 4.
    shell = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
    process = subprocess.Popen(
        ["bash", "-c", shell, CHROMIUM, *options],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    tab = Tab(to_write, from_read)
    try:
        tab.attach()
        yield tab
    finally:
        tab._session = None
        tab.call("Browser.close")
        process.wait(30)
        os.close(to_write)
        os.close(from_read)
