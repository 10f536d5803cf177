"""The memory that peers write into: how long it stays where it is, and registered."""

import importlib.util
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


class Comm:
    """Of two ranks, of which the other does as this one does; or captures what this one does not."""

    size, rank, _core = 2, 0, None

    def __init__(self):
        self.registered = {}
        self.peer_captures = False
        self._calls = SimpleNamespace(run=lambda _name, body: body())

    def register(self, tensor):
        self.registered[tensor.data_ptr()] = tensor.numel()

    def unregister(self, tensor):
        del self.registered[tensor.data_ptr()]

    def all_gather_object(self, mine):
        return [mine, mine or self.peer_captures]


class Calls:
    """Calls of one comm, on a machine that says it has kernels."""

    def __init__(self, monkeypatch):
        import torch

        from braid.overlap import operations

        self.used = []  # the address of each call's workspace
        self.is_capturing = False
        self.comm = Comm()
        core = operations._braid
        stand_in = SimpleNamespace(
            OverlapKernels=lambda _gpu: None,
            OverlapGemm=core.OverlapGemm,
            OverlapChoice=core.OverlapChoice,
            dtype_code=core.dtype_code,
            overlap_workspace_bytes=core.overlap_workspace_bytes,
            overlap_enqueue=lambda _core, _gpu, _kernels, _call, at, *_: self.used.append(at),
        )
        monkeypatch.setattr(operations, "_braid", stand_in)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_capturing)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        stream = SimpleNamespace(cuda_stream=0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
        self.kernels = operations._Kernels(self.comm, torch.device("cpu"))

    def make(self, rows):
        """One of so many rows, and where its workspace is."""
        import torch

        from braid.overlap.shapes import Op, Shape
        from braid.overlap.tuner import Way

        shape = Shape(Op.AG_GEMM, rows, 256, 256, False, torch.bfloat16, 2)
        self.kernels.ways[shape] = Way("128x256 beside", 4)
        x, w = (torch.zeros(n, 256, dtype=torch.bfloat16) for n in (rows, 256))
        self.kernels.run(shape, x, w, None)
        return self.used[-1]

    def capture(self, rows):
        self.is_capturing = True
        try:
            return self.make(rows)
        finally:
            self.is_capturing = False


SMALL, LARGE, LARGEST = 64, 8192, 16384


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch)


def test_a_workspace_that_no_graph_holds_is_given_back(calls):
    small, large = calls.make(SMALL), calls.make(LARGE)
    assert small != large
    assert list(calls.comm.registered) == [large]
    assert calls.make(SMALL) == large


def test_a_workspace_that_a_graph_holds_stays_registered(calls):
    calls.make(SMALL)
    held = calls.capture(SMALL)
    large = calls.make(LARGE)
    assert set(calls.comm.registered) == {held, large}
    # What no graph holds goes as ever, and what one does stays for good.
    largest = calls.make(LARGEST)
    assert set(calls.comm.registered) == {held, largest}
    kept = {tensor.data_ptr() for tensor in calls.kernels._captured}
    assert kept == {held}  # and is nobody else's memory


def test_a_workspace_stays_where_another_rank_has_captured(calls):
    small = calls.make(SMALL)
    calls.comm.peer_captures = True
    large = calls.make(LARGE)
    assert set(calls.comm.registered) == {small, large}


def test_no_graph_gets_a_larger_workspace(calls):
    from braid.errors import InvalidArgument

    calls.make(SMALL)
    with pytest.raises(InvalidArgument, match="more memory is needed"):
        calls.capture(LARGE)
    assert len(calls.comm.registered) == 1
