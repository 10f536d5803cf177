"""Engines in other processes: spawned, told by a pipe what to do, killed and stopped at will.

A module of its own, because a spawned process imports what it runs by name.
"""

import contextlib
import multiprocessing as mp
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np

import braid

TOKEN = "a token of tests"
WAYS = {
    "local": {"nics": "none"},
    "tcp": {"nics": ["tcp:127.0.0.1"], "local": False},
}
_LIMIT_S = 60
_spawn = mp.get_context("spawn")


def options(way: str, name: str, **others: Any) -> dict[str, Any]:
    """Of an engine that a loaded machine does not lose."""
    return {
        "name": name,
        "token": TOKEN,
        "hosts": "127.0.0.1",
        "lease": 20.0,
        **WAYS[way],
        **others,
    }


def pattern(nbytes: int, salt: int) -> np.ndarray:
    """Bytes that depend on their place and on `salt`."""
    return np.random.default_rng(salt).integers(0, 256, nbytes, np.uint8)


class Host:
    """The other process's part: an engine with one region of `memory`."""

    def __init__(self, engine: braid.Engine, nbytes: int, salt: int) -> None:
        self.engine = engine
        self.memory = pattern(nbytes, salt)
        self.region = engine.register(self.memory)

    def names(self) -> Any:
        return self.engine.address, self.region.descriptor

    def bytes(self) -> np.ndarray:
        return self.memory

    def expect(self, imm: int, count: int) -> None:
        self.engine.expect(imm, count).wait(_LIMIT_S)

    def count(self, imm: int) -> int:
        return self.engine.count(imm)

    def recv(self) -> Any:
        return self.engine.recv(_LIMIT_S)

    def notification_and_bytes(self) -> Any:
        return self.engine.take_notification(_LIMIT_S), self.memory.copy()

    def unregister(self) -> None:
        self.region.unregister()

    def write_to(self, descriptor: Any, imm: int) -> None:
        self.engine.write(self.region, descriptor, imm=imm).wait(_LIMIT_S)

    def barrier(self, peers: Any, imm: int) -> None:
        self.engine.barrier(peers, imm, timeout=_LIMIT_S)

    def barriers(self, peers: Any, imm: int, rounds: int) -> list[list[int]]:
        """After each barrier what the others have said before it."""
        heard = []
        for number in range(rounds):
            for ticket in [self.engine.send(peer, bytes([number])) for peer in peers]:
                ticket.wait(_LIMIT_S)
            self.engine.barrier(peers, imm, timeout=_LIMIT_S)
            heard.append([self.engine.recv(0).data[0] for _ in peers])
            self.engine.barrier(peers, imm + 1, timeout=_LIMIT_S)
        return heard

    def fork(self) -> int:
        """A child that has our descriptors for a minute, but for those that tell of our end."""
        child = os.fork()
        if child == 0:
            for fd in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:"):
                        os.close(int(fd))
            time.sleep(60)
            os._exit(0)
        return child

    def close(self) -> None:
        self.engine.close()


def _is_stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def _serve(pipe: Connection, settings: dict[str, Any], nbytes: int, salt: int) -> None:
    with braid.Engine(**settings) as engine:
        host = Host(engine, nbytes, salt)
        pipe.send((True, host.names()))
        while (order := pipe.recv()) is not None:
            name, args = order
            try:
                pipe.send((True, getattr(host, name)(*args)))
            except Exception as error:
                pipe.send((False, error))


class Process:
    """An engine in a process of its own; its calls are Host's. A context manager."""

    def __init__(self, settings: dict[str, Any], nbytes: int, salt: int) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(theirs, settings, nbytes, salt))
        self._process.start()
        theirs.close()
        self.address, self.descriptor = self.answer()

    def begin(self, name: str, *args: Any) -> None:
        self._pipe.send((name, args))

    def answer(self) -> Any:
        assert self._pipe.poll(_LIMIT_S), "the other process says nothing"
        is_good, value = self._pipe.recv()
        if not is_good:
            raise value
        return value

    def __call__(self, name: str, *args: Any) -> Any:
        self.begin(name, *args)
        return self.answer()

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(_LIMIT_S)

    def stop(self) -> None:
        """All threads of it, and not before they have stopped."""
        os.kill(self._process.pid, signal.SIGSTOP)
        until = time.monotonic() + _LIMIT_S
        while not all(
            _is_stopped(task) for task in Path(f"/proc/{self._process.pid}/task").iterdir()
        ):
            assert time.monotonic() < until, "the other process does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self.resume()
            self._pipe.send(None)
        self._process.join(_LIMIT_S)
        is_ended = not self._process.is_alive()
        if not is_ended:
            self._process.kill()
        assert is_ended, "the other process does not end"
