"""A probe in a process of its own: one that hangs or crashes costs its time-out, not the run."""

import ctypes
import multiprocessing as mp
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from braid.record.probe import Verdict

_LEAVE_S = 2.0
_PR_SET_PDEATHSIG = 1
_fork = mp.get_context("fork")  # what the parent imported is there at once; it has no CUDA context


@dataclass(frozen=True)
class Outcome:
    """What came back: a value, or why there is none."""

    verdict: Verdict
    value: Any = None
    why: str = ""


def _nothing() -> None:
    """What a probe needs beforehand, if nothing else is said."""


def _main(
    pipe: Connection, parents: Connection, probe: Callable[..., Any], prepare: Callable[[], None]
) -> None:
    parents.close()  # of which a fork has a copy, as of those of the children before it: hence the
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # word for when the parent ends
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    try:
        prepare()
        pipe.send(Outcome("ok"))
        pipe.send(Outcome("ok", probe(*pipe.recv())))
    except EOFError:  # nobody wants it any longer
        return
    except Exception as error:  # the parent says it
        text = " ".join(str(error).split())
        pipe.send(Outcome("failed", why=f"{type(error).__name__}: {text:.200}"))


class Child:
    """A process that has made ready, and calls `probe` when it is told with what. Its parent ends
    with run() or close().
    """

    def __init__(self, probe: Callable[..., Any], prepare: Callable[[], None] = _nothing) -> None:
        self._pipe, theirs = _fork.Pipe()
        self._process = _fork.Process(
            target=_main, args=(theirs, self._pipe, probe, prepare), daemon=True
        )
        self._process.start()
        theirs.close()
        self._ready: Outcome | None = None

    def make_ready(self, end_s: float, asked_s: float) -> Outcome:
        """Whether it has made ready by then, for which it had `asked_s`, or why not. One that has
        not is ended.
        """
        if self._ready is None:
            self._ready = self._next(end_s, asked_s)
            if self._ready.verdict == "hang":
                self.close()
        return self._ready

    def run(self, arguments: tuple[Any, ...], timeout_s: float) -> Outcome:
        """probe(*arguments), within `timeout_s` from now."""
        end_s = monotonic() + timeout_s
        outcome = self.make_ready(end_s, timeout_s)
        if outcome.verdict == "ok":
            try:
                self._pipe.send(arguments)
                outcome = self._next(end_s, timeout_s)
            except BrokenPipeError:
                outcome = self._ended()
        if outcome.verdict == "ok":
            self._pipe.close()  # it ends by itself; a driver takes a second for that
        else:
            self.close(0 if outcome.verdict == "hang" else _LEAVE_S)
        return outcome

    def close(self, leave_s: float = 0) -> None:
        """Ends it, if need be by force."""
        self._pipe.close()
        self._process.join(leave_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_LEAVE_S)  # one that the driver holds stays; the run goes on

    def _next(self, end_s: float, asked_s: float) -> Outcome:
        if not self._pipe.poll(max(end_s - monotonic(), 0)):
            return Outcome("hang", why=f"nothing came back within {asked_s:g} s")
        try:
            outcome: Outcome = self._pipe.recv()
        except EOFError:
            return self._ended()
        return outcome

    def _ended(self) -> Outcome:
        self._process.join(_LEAVE_S)
        return Outcome("failed", why=f"the probe ended with code {self._process.exitcode}")


def run(probe: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: float) -> Outcome:
    """probe(*arguments) in a child."""
    return Child(probe).run(arguments, timeout_s)


class Children:
    """One child for each of the cases ahead, a few of them made ready at the same time: opening
    GPUs takes longer than measuring them. While one measures, the others wait.
    """

    def __init__(self, make: Sequence[Callable[[], Child]], at_once: int, timeout_s: float) -> None:
        self._make, self._at_once, self._timeout_s = make, at_once, timeout_s
        self._waiting: dict[int, Child] = {}

    def take(self, case: int) -> Child:
        """The one of a case, which is asked for once. None of the others is at work when this
        returns.
        """
        if case not in self._waiting:
            few = range(case, min(case + self._at_once, len(self._make)))
            self._waiting |= {i: self._make[i]() for i in few if i not in self._waiting}
            end_s = monotonic() + self._timeout_s
            for child in self._waiting.values():
                child.make_ready(end_s, self._timeout_s)
        return self._waiting.pop(case)

    def close(self) -> None:
        """Ends those that nobody asked for."""
        while self._waiting:
            self._waiting.popitem()[1].close()
