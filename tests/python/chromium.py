"""Headless Chromium, driven over a pipe with its DevTools protocol: real keys, real sizes.

Everything a page says on its console, and every error that Chromium notes, is kept.
"""

import fcntl
import json
import os
import shutil
import subprocess
import threading

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "ArrowRight": (39, "")}
_PATIENCE_S = 60
_SPEAKS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
_SHIFT = 8


def _pipe():
    """Both ends, above the numbers that Chromium wants for itself."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Chromium:
    """One browser with one page, without any network."""

    def __init__(self, folder):
        (there, commands), (answers, back) = _pipe(), _pipe()
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            f"--user-data-dir={folder}/profile", "--host-resolver-rules=MAP * ~NOTFOUND",
        ]  # fmt: skip
        shell = ["bash", "-c", f'exec "$@" 3<&{there} 4>&{back}', "bash", PROGRAM, *options]
        self._process = subprocess.Popen(
            shell, pass_fds=(there, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(there)
        os.close(back)
        self._commands = os.fdopen(commands, "wb", buffering=0)
        self._answers = os.fdopen(answers, "rb")
        self._limit = None
        self._be_patient()
        self._number = 0
        self._events = []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")

    def _be_patient(self):
        """From now on: a browser that hangs is ended, and whoever reads from it hears of it."""
        if self._limit:
            self._limit.cancel()
        self._limit = threading.Timer(_PATIENCE_S, self._process.kill)
        self._limit.daemon = True
        self._limit.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._limit.cancel()
        self._process.kill()
        self._process.wait()
        self._commands.close()
        self._answers.close()

    def call(self, method, **parameters):
        """One command of the protocol, and what it answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _next(self):
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "Chromium ended"
            text += byte
        return json.loads(text)

    def open(self, path, width=1280, height=800):
        """Shows a file in a window of this size."""
        self._be_patient()
        self.resize(width, height)
        self._events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())

    def resize(self, width, height):
        """A phone's or a desk's window; what is wider than it makes it scroll."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def show_as(self, medium="screen", scheme="light"):
        """On a screen or on paper; dark or light."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=medium, features=[feature])

    def press(self, key, shift=False):
        """A key goes down and up."""
        code, text = _KEYS[key]
        parts = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        parts["modifiers"] = _SHIFT * shift
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **parts)
        self.call("Input.dispatchKeyEvent", type="keyUp", **parts)

    def ask(self, expression):
        """What a line of JavaScript gives."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def said(self):
        """What was written on the console or noted as an error since the page was opened."""
        self.ask("0")  # whatever came before it has been read then
        return [event for event in self._events if event["method"] in _SPEAKS]
