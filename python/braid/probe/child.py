"""A probe in a process of its own: one that hangs or crashes costs its time-out, not the run."""

import multiprocessing as mp
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from braid.probe.record import Verdict

_LEAVE_S = 2.0
_fork = mp.get_context("fork")  # what the parent imported is there at once; it has no CUDA context


@dataclass(frozen=True)
class Outcome:
    """What came back: a value, or why there is none."""

    verdict: Verdict
    value: Any = None
    why: str = ""


def _main(pipe: Connection, probe: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    try:
        pipe.send(Outcome("ok", probe(*arguments)))
    except Exception as error:  # the parent says it
        text = " ".join(str(error).split())
        pipe.send(Outcome("failed", why=f"{type(error).__name__}: {text:.200}"))


def run(probe: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: float) -> Outcome:
    """probe(*arguments) in a child."""
    ours, theirs = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_main, args=(theirs, probe, arguments), daemon=True)
    process.start()
    theirs.close()
    outcome = _wait(ours, process, timeout_s)
    ours.close()
    process.join(0 if outcome.verdict == "hang" else _LEAVE_S)
    if process.is_alive():
        process.kill()
        process.join(_LEAVE_S)  # one that the driver holds stays; the run goes on
    return outcome


def _wait(pipe: Connection, process: BaseProcess, timeout_s: float) -> Outcome:
    if not pipe.poll(timeout_s):
        return Outcome("hang", why=f"nothing came back within {timeout_s:g} s")
    try:
        outcome: Outcome = pipe.recv()
    except EOFError:
        process.join(_LEAVE_S)
        return Outcome("failed", why=f"the probe ended with code {process.exitcode}")
    return outcome
