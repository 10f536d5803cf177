"""Ranks for tests: a function runs in n forked processes, each with the environment of a rank.

Everything that makes a comm runs in a child, never in pytest's own process, so that no test
leaves threads or an environment behind for the next fork. A child's exception comes back as text.
"""

import multiprocessing as mp
import os
import secrets
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import pytest
import typer.main

import braid
from braid.launch import free_port

_fork = mp.get_context("fork")
_ENVIRONMENT = {"BRAID_TUNE": "off", "BRAID_TIMEOUT": "20s", "BRAID_LOG": "error"}


# What NumPy brings for products of matrices starts a thread per core wherever it is loaded, which
# takes as long as all the rest of NumPy. Ranks have one, as `braid run` says; so have the tests and
# what they start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Ignored where a script has the tests in the background; so it would be in what they start and stop
# by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_make_command = typer.main.get_command


@cache
def _made_once(app: typer.Typer, _groups: int, _commands: int) -> Any:
    return _make_command(app)


def _get_command(app: typer.Typer) -> Any:
    return _made_once(app, len(app.registered_groups), len(app.registered_commands))


# typer makes all commands anew whenever one is called, which takes longer than most of them. A
# process of a user's calls one; the tests call many.
typer.main.get_command = _get_command


class RankError(AssertionError):
    """A rank raised; the message has its traceback."""


def _rank_main(
    rank: int, environment: Mapping[str, str], pipe: Connection, function: Callable[[], Any]
) -> None:
    os.environ |= {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    if (torch := sys.modules.get("torch")) is not None:
        # A fork has no threads of OpenMP that its parent had, and would wait for them for ever.
        torch.set_num_threads(1)
    try:
        pipe.send((True, function()))
    except BaseException:  # the parent raises it
        pipe.send((False, traceback.format_exc()))


def _how_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "does not end"
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def _not_ended_well(exit_code: int | None, ok: bool, value: Any) -> str:
    """What is wrong about a rank that was to return and to leave; empty: nothing."""
    if not ok and value is not None:
        return f"\n{value}"
    if not ok:
        return f"{_how_ended(exit_code)} and returned nothing"
    return "" if exit_code == 0 else f"{_how_ended(exit_code)} after it had returned"


def _not_killed_by(signal_number: int, exit_code: int | None, value: Any) -> str:
    if exit_code == -signal_number and value is None:
        return ""
    wanted = signal.Signals(signal_number).name
    return f"was to be killed by {wanted}, but {_how_ended(exit_code)} and said {value}"


class Ranks:
    """Starts ranks; `options` are further environment variables."""

    def start(
        self, size: int, function: Callable[[], Any], options: Mapping[str, str] | None = None
    ) -> list[tuple[Any, Connection]]:
        """The processes and the pipes on which their results come."""
        job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environment = {
            **_ENVIRONMENT,
            **job,
            "BRAID_JOB_TOKEN": secrets.token_hex(8),
            **(options or {}),
        }
        started = []
        for rank in range(size):
            ours, theirs = _fork.Pipe(duplex=False)
            process = _fork.Process(target=_rank_main, args=(rank, environment, theirs, function))
            process.start()
            theirs.close()
            started.append((process, ours))
        return started

    def collect(
        self,
        started: list[tuple[Any, Connection]],
        timeout_s: float = 60,
        killed: Mapping[int, int] | None = None,
    ) -> list[Any]:
        """Every rank's result. Raises RankError unless each of them says one and ends well.

        `killed` are the ranks that a signal is to end, and which; their results are None.
        """
        killed = killed or {}
        results = [self._result(pipe, timeout_s) for _, pipe in started]
        for process, _ in started:
            process.join(timeout_s)
        failures = []
        for rank, ((process, _), (ok, value)) in enumerate(zip(started, results, strict=True)):
            if rank in killed:
                wrong = _not_killed_by(killed[rank], process.exitcode, value)
            else:
                wrong = _not_ended_well(process.exitcode, ok, value)
            if wrong:
                failures.append(f"rank {rank}: {wrong}")
            if process.exitcode is None:
                process.kill()  # else pytest itself would wait for it at its end
        if failures:
            raise RankError("\n".join(failures))
        return [value for _, value in results]

    @staticmethod
    def _result(pipe: Connection, timeout_s: float) -> tuple[bool, Any]:
        """Whether the rank returned, and what; else its traceback, or None: it said nothing."""
        if not pipe.poll(timeout_s):
            return False, f"no result within {timeout_s} s"
        try:
            return pipe.recv()
        except EOFError:
            return False, None

    def __call__(
        self,
        size: int,
        function: Callable[["braid.Comm"], Any],  # quoted: tools' tests need no compiled module
        options: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """function(comm) on every rank; its results in rank order."""

        def body() -> Any:
            with braid.init(progress=False) as comm:
                return function(comm)

        return self.collect(self.start(size, body, options))


@pytest.fixture
def ranks() -> Ranks:
    """Runs a function on n ranks: ranks(4, lambda comm: comm.rank) == [0, 1, 2, 3]."""
    return Ranks()


@pytest.fixture(autouse=True)
def _no_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Tests start without a rank's environment, and write their tuning cache elsewhere."""
    for name in list(os.environ):
        if name.startswith("BRAID_") or name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "SLURM_PROCID",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BRAID_CACHE_DIR", str(tmp_path_factory.getbasetemp()))
