"""Processes of agent.py, as the tests have them."""

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

LIMIT_S = 90
HERE = Path(__file__).parent


class RefusedError(Exception):
    """What an order raised there."""


class Process:
    """One agent's process; every order of agent.Agent is a method."""

    def __init__(self, name: str, plugins: Path, log: Path, **environment: str) -> None:
        self.name = name
        self._pipe, there = Pipe()
        os.set_inheritable(there.fileno(), True)
        self.log = log
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "agent.py"), str(there.fileno())],
            env={**os.environ, "NIXL_PLUGIN_DIR": str(plugins), "BRAID_LOG": "warn", **environment},
            pass_fds=[there.fileno()],
            stdout=self._log,
            stderr=self._log,
        )
        there.close()

    def ask(self, order: str, *arguments: Any) -> None:
        """Without waiting for the answer."""
        self._pipe.send((order, arguments))

    def answer(self) -> Any:
        if not self._pipe.poll(LIMIT_S):
            raise TimeoutError(f"agent {self.name} says nothing: {self.log.read_text()[-2000:]}")
        is_good, found = self._pipe.recv()
        if not is_good:
            raise RefusedError(found)
        return found

    def __getattr__(self, order: str) -> Any:
        if order.startswith("_"):
            raise AttributeError(order)

        def run(*arguments: Any) -> Any:
            self._pipe.send((order, arguments))
            return self.answer()

        return run

    def words(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def end(self) -> None:
        self._pipe.close()
        self.signal(signal.SIGCONT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._log.close()

    def code(self) -> int | None:
        return self._process.poll()


class Pair:
    """Two agents that have met; `far` has `blocks` of zeroes, `near` has patterns."""

    def __init__(self, near: Process, far: Process, settings: dict[str, str]) -> None:
        self.near, self.far = near, far
        near.open("near", settings)
        far.open("far", settings)

    def blocks(self, count: int, nbytes: int, seed: int = 1) -> tuple[list[int], list[int]]:
        """Addresses here and there. Call it once: metadata that has changed is refused."""
        ours = self.near.blocks_of(count, nbytes, seed)
        theirs = self.far.blocks_of(count, nbytes, None)
        self.meet()
        return ours, theirs

    def meet(self) -> None:
        assert self.near.meet(self.far.metadata()) == "far"
        assert self.far.meet(self.near.metadata()) == "near"


WAYS = {"one host": {"nics": "none"}, "rails": {"local": "no", "nics": "tcp:127.0.0.1"}}
