"""The memory that peers write into: how long it stays where it is, registered, and at all."""

import gc
import importlib.util
import weakref
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

import braid
from braid.errors import InvalidArgument

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


class Core:
    """Of a comm of two ranks, without one."""

    rank, size = 0, 2
    store_address = "127.0.0.1"

    def __init__(self, events):
        self.closed, self.events = False, events
        self.has_ended_in_peace = False
        self.is_broken = False

    def close(self, say_farewell=True):
        self.closed = True
        self.has_ended_in_peace = say_farewell and not self.is_broken

    def __del__(self):
        self.events.append("core gone")


class Comm(braid.Comm):
    """The other rank does as this one does; or it captures what this one does not."""

    def __init__(self, events):
        super().__init__(Core(events))
        self.registered = {}
        self.peer_captures = False

    def register(self, tensor):
        self.registered[tensor.data_ptr()] = weakref.ref(tensor)
        return tensor

    def unregister(self, tensor):
        del self.registered[tensor.data_ptr()]

    def all_gather_object(self, mine):
        return [mine, mine or self.peer_captures]


class Calls:
    """Calls of one comm, on a machine that says it has kernels."""

    def __init__(self, monkeypatch):
        import torch

        from braid.overlap import operations
        from braid.overlap.tuner import Way

        self.used = []  # the address of each call's workspace
        self.is_capturing = False
        self.events = []
        self.comm = Comm(self.events)
        core = operations._braid
        stand_in = SimpleNamespace(
            OverlapKernels=lambda _gpu: None,
            OverlapGemm=core.OverlapGemm,
            OverlapChoice=core.OverlapChoice,
            dtype_code=core.dtype_code,
            overlap_num_blocks=lambda *_: 132,
            overlap_workspace_bytes=core.overlap_workspace_bytes,
            overlap_enqueue=lambda _core, _gpu, _kernels, _call, at, *_: self.used.append(at),
        )
        way = Way("128x256 beside", 4)
        monkeypatch.setattr(operations, "_braid", stand_in)
        monkeypatch.setattr(operations, "why_sequential", lambda *_: "")
        monkeypatch.setattr(operations, "choose", lambda *_: (way, {}))
        monkeypatch.setattr(operations, "current_stream", lambda _gpu: 0)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_capturing)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)

    def make(self, rows):
        """One of so many rows, and where its workspace is."""
        import torch

        from braid import overlap

        x, w = (torch.zeros(n, 256, dtype=torch.bfloat16) for n in (rows, 256))
        overlap.ag_gemm(x, w, self.comm)
        return self.used[-1]

    def capture(self, rows):
        self.is_capturing = True
        try:
            return self.make(rows)
        finally:
            self.is_capturing = False

    def ways(self):
        return self.comm._kept["overlap"].ways

    def live(self):
        """Where registered memory is nobody else's yet."""
        return {at for at, memory in self.comm.registered.items() if memory() is not None}


SMALL, LARGE, LARGEST = 64, 8192, 16384


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch)


def test_a_workspace_that_no_graph_holds_is_given_back(calls):
    small, large = calls.make(SMALL), calls.make(LARGE)
    assert small != large
    assert set(calls.comm.registered) == calls.live() == {large}
    assert calls.make(SMALL) == large


def test_a_workspace_that_a_graph_holds_stays_registered(calls):
    calls.make(SMALL)
    held = calls.capture(SMALL)
    large = calls.make(LARGE)
    assert set(calls.comm.registered) == calls.live() == {held, large}
    # What no graph holds goes as ever, and what one does stays for good.
    largest = calls.make(LARGEST)
    assert set(calls.comm.registered) == calls.live() == {held, largest}


def test_a_workspace_stays_where_another_rank_has_captured(calls):
    small = calls.make(SMALL)
    calls.comm.peer_captures = True
    large = calls.make(LARGE)
    assert set(calls.comm.registered) == calls.live() == {small, large}


def test_no_graph_gets_a_larger_workspace(calls):
    small = calls.make(SMALL)
    ((shape, way),) = calls.ways().items()
    calls.ways()[replace(shape, rows=LARGE)] = way
    with pytest.raises(InvalidArgument, match="more memory is needed"):
        calls.capture(LARGE)
    assert calls.live() == {small}


def test_memory_goes_when_the_comm_is_closed(calls):
    calls.make(SMALL)
    calls.capture(SMALL)
    calls.make(LARGE)
    assert len(calls.live()) == 2
    calls.comm.close()
    assert calls.live() == set()


def test_memory_goes_at_the_end_of_a_with(calls):
    with calls.comm:
        calls.make(SMALL)
        assert len(calls.live()) == 1
    assert calls.live() == set()


def test_memory_stays_where_the_end_was_not_in_peace(calls):
    calls.make(SMALL)
    calls.comm._core.is_broken = True
    calls.comm.close()
    assert len(calls.live()) == 1
    comm = weakref.ref(calls.comm)
    memory = next(iter(calls.comm.registered.values()))
    del calls.comm
    gc.collect()
    assert comm() is None
    assert memory() is not None, "a peer's copies may land there yet"


def test_memory_stays_where_a_with_failed(calls):
    calls.make(SMALL)
    with suppress(KeyError), calls.comm:
        raise KeyError
    assert len(calls.live()) == 1


def test_the_memory_of_a_comm_that_nobody_closed_stays(calls):
    calls.make(SMALL)
    (memory,) = calls.comm.registered.values()
    comm = weakref.ref(calls.comm)
    del calls.comm
    gc.collect()
    assert comm() is None
    assert calls.events == ["core gone"]
    assert memory() is not None


def test_a_call_after_memory_was_short_has_none_of_the_old(calls, monkeypatch):
    import torch

    calls.make(SMALL)
    held = calls.capture(SMALL)
    real = torch.zeros

    def short(*size, **how):
        if how.get("dtype") is torch.uint8:
            raise torch.OutOfMemoryError("for the test")
        return real(*size, **how)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", short)
        with pytest.raises(torch.OutOfMemoryError):
            calls.make(LARGEST)
    again = calls.make(LARGE)
    assert again != held
    assert set(calls.comm.registered) == calls.live() == {held, again}, "the graph's is there yet"


def test_kernels_that_somebody_has_kept_say_that_their_comm_is_gone(calls):
    calls.make(SMALL)
    ((shape, way),) = calls.ways().items()
    kernels = calls.comm._kept["overlap"]
    del calls.comm
    with pytest.raises(InvalidArgument, match="is gone"):
        kernels.ready(shape, way)
