"""One rank of the GPU benchmark on a machine without a GPU: torch's CPU tensors and Gloo stand in.

    braid run -n 2 tests/python/gpu_stand_in.py RECORD [lie|lazy|slow|interrupt|asked|shared]

Nothing that is timed here means anything; the walk through a run does.
"""

import contextlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

import braid
from braid.bench import braid_contestant, deadline, mscclpp, nccl, session
from braid.bench.no_multicast import forbid_multicast
from braid.bench.request import Request, tasks_for
from braid.cases.operations import OPS


class Event:
    """A point in time of the host."""

    def __init__(self, **_options):
        self.at_s = 0.0

    def record(self):
        self.at_s = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return (later.at_s - self.at_s) * 1e3


def explain(_comm, _op, _nbytes, on):
    """Every message goes by copy engines, a tenth of it over the host link."""
    assert on == "gpu"
    plan = {"path": "copy engines", "links": [{"name": "pcie", "share": 0.1}]}
    return braid.Explanation("", plan)


class Graph:
    """Makes the calls again that contestants made while it was captured."""

    captured = None
    """Calls of the graph that is being captured; None: none is."""

    def __init__(self):
        self.calls = []

    def replay(self):
        for call in self.calls:
            call()


@contextlib.contextmanager
def capture(graph, **_options):
    """Notes what is called inside."""
    Graph.captured = graph.calls
    yield
    Graph.captured = None


def note_calls(kind):
    """Of one class of contestants."""
    run = kind.run

    def noted(contestant):
        if Graph.captured is not None:
            Graph.captured.append(lambda: run(contestant))
        run(contestant)

    kind.run = noted


def stand_in():
    """The parts of torch.cuda that a run uses."""
    cuda = torch.cuda
    cuda.Event, cuda.CUDAGraph, cuda.graph = Event, Graph, capture
    cuda.synchronize = cuda.empty_cache = cuda.set_device = lambda *_: None
    cuda.mem_get_info = lambda *_: (8 << 30, 8 << 30)
    cuda.memory_reserved = cuda.memory_allocated = cuda.current_device = lambda *_: 0
    cuda.current_stream = lambda: SimpleNamespace(cuda_stream=0)
    cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
    cuda.get_device_name = lambda *_: "stand-in"
    gpu = "0" if "shared" in sys.argv else os.environ["RANK"]
    cuda.get_device_properties = lambda *_: SimpleNamespace(uuid=f"GPU-{gpu}")
    real_join, real_ones, cpu = dist.init_process_group, torch.ones, torch.device("cpu")
    dist.init_process_group = lambda _backend, **options: real_join("gloo", **options)
    torch.ones = lambda *sizes, **_device: real_ones(*sizes)
    session.torch.device = lambda *_: cpu
    braid.Comm._force_host_share = lambda *_: None
    braid.Comm._host_share = lambda *_: 0.1
    braid.Comm.explain = explain
    braid.Comm.register = lambda _comm, buf: buf
    braid.Comm.unregister = lambda *_: None


def lie(contestant):
    """One byte of NCCL's all_to_all is wrong on rank 1."""
    if os.environ["RANK"] == "1" and contestant.out.numel() and contestant._comm is None:
        contestant.out.view(torch.uint8)[5] ^= 1


def be_lazy(honest):
    """From the fourth call of a case on nothing is done: the checked call before was right."""
    prepare, made = nccl.Nccl.prepare, {}

    def prepared(contestant, *case):
        made[contestant] = 0
        prepare(contestant, *case)

    def run(contestant):
        made[contestant] += 1
        if made[contestant] < 4:
            honest(contestant)

    nccl.Nccl.prepare, nccl.Nccl.run = prepared, run


def misbehave(how):
    honest = nccl.Nccl.run
    calls = itertools.count()

    if how == "lazy":
        be_lazy(honest)
        return

    def run(contestant):
        honest(contestant)
        if how == "lie":
            lie(contestant)
        elif how == "slow" and os.environ["RANK"] == "1":
            time.sleep(60)
        elif how == "interrupt" and os.environ["RANK"] == "0" and next(calls) == 110:
            os.kill(os.getppid(), signal.SIGINT)  # in the second case

    nccl.Nccl.run = run


def main():
    stand_in()
    forbid_multicast()
    how = sys.argv[2] if len(sys.argv) > 2 else ""
    if how:
        misbehave(how)
    for kind in (braid_contestant.Braid, nccl.Nccl, mscclpp.Mscclpp):
        note_calls(kind)
    deadline._LOOK_EVERY_S = 0.05
    groups = {"nccl", "nccl-best", "symm", "links", "unregistered"}
    wanted = {"calls": 7, "launches": 3, "root": 0} if how == "asked" else {}
    library = os.environ.get("FAKE_LIBRARY", "")
    sizes = (1000, 1 << 18)
    if library:
        groups, sizes = {"nccl", "mscclpp"}, (1000,)
    request = Request(
        tasks=(
            *tasks_for(OPS, sizes, "eager", groups),
            *tasks_for(OPS[:1], (4096,), "graph", groups),
            *tasks_for(OPS[:1], (1 << 40,), "eager", groups),
        ),
        samples=3,
        time_budget_s=3,
        step_timeout_s=3 if how == "slow" else 30,
        repeats=0,
        options={"links": "shm", "tune": "off"},
        json_path=Path(sys.argv[1]),
        svg_path=Path(sys.argv[1]).with_suffix(".svg"),
        mscclpp=library,
        by_rank=True,
        **wanted,
    )
    return session.run_rank(request)


if __name__ == "__main__":
    sys.exit(main())
