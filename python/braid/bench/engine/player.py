"""A process that takes part, as the one that asks sees it: a line of JSON there, a line back.

Every answer has a deadline; who misses it is killed, and the error says what was asked. Ctrl-C in a
terminal reaches every process there and is for the one that asks alone: a player never sees it, and
ends with its input, so that the case at hand comes to its end.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from braid.closing import Closing
from braid.errors import DriverError, Timeout

Answer = dict[str, Any]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""NumPy would start a thread for every core, which polling peers do not leave to it."""


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What is started inside keeps SIGINT blocked, from its first instruction on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Player(Closing):
    """One process. `prefix` is put before its command line, as `ip netns exec HOST`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str] = (),
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        program = command or [sys.executable, "-m", "braid.bench.engine.peer"]
        self._asked = "its start"
        with _deaf_to_ctrl_c():
            self._process = subprocess.Popen(
                [*prefix, *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **ENVIRONMENT, **(environment or {})},
            )
        self._left = b""

    def close(self) -> None:
        """Ends it: by the end of its input, and 5 s later by force."""
        if self._process.stdin:
            with suppress(BrokenPipeError):  # it died, and what it was told is still in the buffer
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tell(self, do: str, **words: Any) -> None:  # noqa: ANN401 - what JSON can say
        """Asks without waiting; answer() is to follow."""
        self._write(json.dumps({"do": do, **words}), do)

    def _write(self, line: str, do: str) -> None:
        self._asked = do
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise DriverError(f"{self.name} has ended before '{do}'") from error

    def answer(self, timeout_s: float = 30.0) -> Answer:
        """What it says to the last tell(). An error of its own is raised here."""
        line = self.line(timeout_s)
        found: Answer = json.loads(line)
        if "error" in found:
            raise DriverError(f"{self.name}, {self._asked}: {found['error']}")
        return found

    def ask(self, do: str, timeout_s: float = 30.0, **words: Any) -> Answer:  # noqa: ANN401
        """Both."""
        self.tell(do, **words)
        return self.answer(timeout_s)

    def say(self, line: str, timeout_s: float = 30.0) -> Answer:
        """As ask(), for a program that takes plain lines."""
        self._write(line, line.partition(" ")[0])
        return self.answer(timeout_s)

    def line(self, timeout_s: float) -> str:
        """The next line of its output."""
        assert self._process.stdout is not None
        ends = monotonic() + timeout_s
        while b"\n" not in self._left:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, ends - monotonic()))
            if not ready:
                self._process.kill()
                raise Timeout(f"{self.name}: no answer to '{self._asked}' in {timeout_s:g} s")
            got = os.read(self._process.stdout.fileno(), 1 << 16)
            if not got:
                code = self._process.wait()
                raise DriverError(f"{self.name} ended with code {code} in '{self._asked}'")
            self._left += got
        line, _, self._left = self._left.partition(b"\n")
        return line.decode()
