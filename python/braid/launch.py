"""Starts ranks on this machine and ends them together.

The launcher is not part of the job: ranks find each other through the environment that it gives
them. Its rules:
  - the first rank that fails decides the exit code; the others get `grace_s` to notice and leave
    by themselves, then
    SIGTERM, then, after KILL_AFTER_S more, SIGKILL;
  - SIGINT, SIGTERM and SIGHUP are passed on to every rank, and the same clock starts; one that
    comes while ranks are being started ends that first; one that was ignored already (nohup) stays
    so;
  - every rank is the leader of a process group of its own, so that a Ctrl-C reaches it once,
    through us; what goes to a rank goes to all of its group, and what is left of the groups of a
    job that failed or was interrupted is ended with it;
  - when the launcher itself is killed the kernel sends SIGTERM to the ranks, and to nothing that
    they have started: what is then left of their groups goes on (docs/launch.md);
  - ranks are in the background of a terminal, where setting its modes or reading it would stop them
    until somebody says go on, and nobody would: both signals are ignored, so that the one works and
    the other is an error; standard input is empty;
  - what a launcher around this one said to its rank is not passed on: ours are ranks of a job of
    their own.
"""

import ctypes
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import TextIO

KILL_AFTER_S = 2.0
LOST_READER = 128 + signal.SIGPIPE
"""Exit code of who writes to a pipe that nobody reads any more, as `| head` leaves it: no fault."""
_POLL_S = 0.02
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_OF_AN_OUTER_RANK = re.compile(
    r"TORCHELASTIC_|(GROUP|ROLE)_(RANK|WORLD_SIZE)$"
    r"|OMPI_COMM_WORLD_|OMPI_MCA_ess_base_|PMI2?_|PMIX_(?!MCA_)"
)
"""What torchrun, mpirun and other launchers of MPI tell a rank about itself, and not what its user
has set. Slurm's variables stay: they tell of the job as well, and RANK goes before them.
"""


class StartError(OSError):
    """A rank could not be started."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command_for(target: Sequence[str], *, module: bool) -> list[str]:
    """`script.py args` and `-m module args` run with this Python; anything else is a program."""
    if module:
        return [sys.executable, "-m", *target]
    if target[0].endswith(".py"):
        return [sys.executable, *target]
    return list(target)


def _rank_environment(rank: int, ranks: int, job: Mapping[str, str]) -> dict[str, str]:
    ours = {n: text for n, text in os.environ.items() if not _OF_AN_OUTER_RANK.match(n)}
    environment = {**ours, **job}
    environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    environment |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    if ranks > 1:  # as torchrun does: ranks would otherwise start a thread per core each
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _job_environment() -> dict[str, str]:
    token = os.environ.get("BRAID_JOB_TOKEN") or secrets.token_hex(16)
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "BRAID_JOB_TOKEN": token}


_libc = ctypes.CDLL(None)  # loaded before any fork


def _become_rank(launcher: int) -> None:
    """In the new process, before its program."""
    for number in (signal.SIGTTOU, signal.SIGTTIN):
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != launcher:  # it has gone already, so no signal will come
        os._exit(1)


class Job:
    """The processes of one launch."""

    def __init__(self, grace_s: float, output: TextIO | None) -> None:
        self._grace_s, self._output = grace_s, output
        self._end_at: float | None = None  # when patience with the remaining ranks ends
        self._was_terminated = False
        self._is_starting = True
        self._kept: list[int] = []  # signals to be passed on
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], ranks: int) -> None:
        """All ranks, or those before an interruption. StartError leaves none."""
        try:
            job = _job_environment()
            for rank in range(ranks):
                if self._kept:
                    break
                self._processes.append(self._start(command, _rank_environment(rank, ranks, job)))
        except BaseException as error:
            self._signal_all(signal.SIGKILL)
            if isinstance(error, OSError):
                raise StartError(error.errno, error.strerror) from error
            raise
        self._is_starting = False
        self._pass_on()

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            process_group=0,
            preexec_fn=partial(_become_rank, os.getpid()),
        )

    def _signal_all(self, number: int) -> None:
        """To the groups, also of ranks that have ended: those are not reaped before the end, so
        nobody else can have got their numbers.
        """
        for process in self._processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def interrupt(self, number: int) -> None:
        """Passes a signal on and starts the clock. While a rank is being started nobody knows its
        number yet: the signal is kept until it can reach that one, too.
        """
        self._kept.append(number)
        if not self._is_starting:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._kept:
            kept, self._kept = self._kept, []  # a handler may be in here in the midst of it
            for number in kept:
                self._signal_all(number)
            self._start_clock()

    def _start_clock(self) -> None:
        if self._end_at is None:
            self._end_at = time.monotonic() + self._grace_s

    def _enforce(self) -> None:
        if self._end_at is None or time.monotonic() < self._end_at:
            return
        self._signal_all(signal.SIGKILL if self._was_terminated else signal.SIGTERM)
        self._was_terminated = True
        self._end_at = time.monotonic() + KILL_AFTER_S

    def wait(self) -> int:
        """The exit code of the first rank that failed, 0 when none did.

        A signal counts as 128 + its number.
        """
        first_failure = 0
        running = dict(enumerate(self._processes))
        while running:
            ended = {
                rank: code for rank, p in running.items() if (code := _exit_code(p.pid)) is not None
            }
            for rank, code in ended.items():
                del running[rank]
                if code != 0 and first_failure == 0:
                    first_failure = code if code > 0 else 128 - code
                    if first_failure != LOST_READER:
                        _report(rank, code, len(running))
                    self._start_clock()
            self._enforce()
            if not ended:
                time.sleep(_POLL_S)
        self._end_groups()
        return first_failure

    def _end_groups(self) -> None:
        """What ranks of a job that did not end well have left running."""
        if self._end_at is not None:
            self._signal_all(signal.SIGTERM)
        for process in self._processes:
            process.wait()
        if self._end_at is None:
            return
        give_up_at = time.monotonic() + KILL_AFTER_S
        while self._has_groups() and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        if self._has_groups():
            self._signal_all(signal.SIGKILL)

    def _has_groups(self) -> bool:
        for process in self._processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, 0)
                return True
        return False


def _exit_code(pid: int) -> int | None:
    """As subprocess counts them; None while it runs. The process stays to be waited for."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _report(rank: int, code: int, others: int) -> None:
    how = f"exited with code {code}" if code > 0 else f"was killed by {_signal_name(-code)}"
    more = f"; ending the other {others}" if others else ""
    try:
        print(f"braid run: rank {rank} {how}{more}", file=sys.stderr, flush=True)  # noqa: T201
    except OSError:  # nobody reads it: the ranks go on for as long as they would have
        # What the buffer has left would fail again at the end: Python makes exit code 120 of it.
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stderr.fileno())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of the real-time signals Python names the first and the last
        return f"signal {number}"


@contextmanager
def _forwarding(job: Job) -> Iterator[list[int]]:
    """While inside, signals to the launcher go to the ranks, and ranks that end can be waited for.

    Yields the list of signals that came.
    """
    seen: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        job.interrupt(number)

    heeded = [number for number in _FORWARDED if not _is_ignored(number)]
    before = {number: signal.signal(number, forward) for number in heeded}
    if _is_ignored(signal.SIGCHLD):  # inherited: the kernel would collect the ranks
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def launch(
    command: Sequence[str], ranks: int, *, grace_s: float = 5.0, output: TextIO | None = None
) -> int:
    """Runs `command` as `ranks` processes and returns the exit code of the whole. What they print
    goes to `output`, or where this process prints.

    StartError when a rank cannot be started.
    """
    job = Job(grace_s, output)
    with _forwarding(job) as seen:
        job.start(command, ranks)
        code = job.wait()
    return 128 + seen[0] if seen else code
