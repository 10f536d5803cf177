"""Two processes of this machine that stand for two GPUs, with braid's links between them."""

import ctypes
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import braid
from braid.launch import free_port
from braid.probe.lane import Lane
from braid.probe.link_lane import LinkLane, serve
from braid.probe.pairs import Settings, measure
from braid.record.probe import Series

_PR_SET_PDEATHSIG = 1
_WAIT = "600s"  # rank 1 waits for orders


@dataclass(frozen=True)
class Way:
    """A lane to open: a link, and the rank that sends."""

    link: str
    root: int


def _open(way: Way, port: int) -> braid.Comm:
    return braid.init(
        links=way.link, store_port=str(port), tune="off", timeout=_WAIT, progress=False
    )


def _be_rank_1(ways: Sequence[Way], ports: Sequence[int], core: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {"RANK": "1", "LOCAL_RANK": "1"}
    _pin(core)
    comms = [_open(way, port) for way, port in zip(ways, ports, strict=True)]
    threads = [
        threading.Thread(target=serve, args=(comm, way.root))
        for way, comm in zip(ways, comms, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pin(index: int) -> None:
    """To one core, as a rank drives one GPU; where there are several."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})


@contextmanager
def lanes(ways: Sequence[Way], ends: tuple[int, int]) -> Iterator[list[Lane]]:
    """The lanes of a pair of ranks, which are named by `ends` and pinned to cores of those
    numbers. This process is rank 0 while inside.
    """
    ports = [free_port() for _ in ways]
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
    ours = {**job, "BRAID_JOB_TOKEN": secrets.token_hex(8), "RANK": "0", "LOCAL_RANK": "0"}
    before, cores = dict(os.environ), os.sched_getaffinity(0)
    os.environ |= ours
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _be_rank_1(ways, ports, ends[1])
            code = 0
        finally:
            os._exit(code)
    try:
        _pin(ends[0])
        names = (f"rank{ends[0]}", f"rank{ends[1]}")
        opened: list[Lane] = []
        for way, port in zip(ways, ports, strict=True):
            a, b = names if way.root == 0 else names[::-1]
            opened.append(LinkLane(f"{way.link} {a}>{b}", names, _open(way, port), way.root))
        yield opened
        for lane in opened:
            lane.close()
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.sched_setaffinity(0, cores)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def pair_over(link: str, a: int, b: int, settings: Settings, budget_s: float) -> list[Series]:
    """Both directions between two ranks over one link."""
    with lanes([Way(link, 0), Way(link, 1)], (a, b)) as (there, back):
        found = measure(there, back, settings, budget_s)
    return [replace(one, group=f"{link} {one.group}") for one in found]
