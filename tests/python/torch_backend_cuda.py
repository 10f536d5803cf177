"""A stand-in for torch.cuda: streams and events that only remember. Another one for the part of the
core that is told addresses on a GPU: the same calls on host memory.
"""

import contextlib
import ctypes
import itertools

import torch

from braid import _braid
from braid.torch import streams
from braid.torch.reduction import REDUCIBLE

GPU = torch.device("cuda", 0)


class FakeEvent:
    def __init__(self, cuda):
        self.cuda, self.is_done, self.stream = cuda, False, None
        cuda.events.append(self)
        self.name = f"e{len(cuda.events)}"

    def record(self, stream):
        self.stream = stream
        self.cuda.log.append(f"{self.name} recorded on {stream.name}")

    def query(self):
        self.cuda.asked.append(self.name)
        return self.is_done

    def synchronize(self):
        self.is_done = True
        self.cuda.log.append(f"host waits for {self.name} on {self.stream.name}")


class FakeStream:
    handles = itertools.count(1)

    def __init__(self, cuda, name):
        self.cuda, self.name, self.is_done = cuda, name, False
        self.cuda_stream = next(self.handles)

    def wait_stream(self, other):
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.cuda.log.append(f"{self.name} waits for {event.name}")

    def record_event(self):
        event = FakeEvent(self.cuda)
        event.stream = self
        return event

    def finish(self):
        self.is_done = True

    def query(self):
        return self.is_done


class FakeCuda:
    """What braid.torch uses of torch.cuda."""

    def __init__(self):
        self.log, self.events, self.asked = [], [], []
        self.current, self.made, self.is_capturing = FakeStream(self, "default"), 0, False
        self.chosen = GPU

    def Stream(self, _device):  # noqa: N802
        self.made += 1
        return FakeStream(self, f"s{self.made}")

    def Event(self):  # noqa: N802
        return FakeEvent(self)

    def current_stream(self, _device):
        return self.current

    def current_device(self):
        return self.chosen.index

    def is_current_stream_capturing(self):
        return self.is_capturing

    @contextlib.contextmanager
    def device(self, device):
        before, self.chosen = self.chosen, device
        try:
            yield
        finally:
            self.chosen = before

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield stream
        finally:
            self.current = before


_DTYPES = {_braid.dtype_code(str(dtype).removeprefix("torch.")): dtype for dtype in REDUCIBLE}
_OPS = {_braid.redop_code(op): op for op in ("sum", "prod", "min", "max", "avg")}


def row_at(address, count, dtype):
    """The elements there: [count]."""
    dtype = _DTYPES[dtype]
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


class FakeCore:
    """The five calls by addresses, on host memory; `calls` has each one's name and stream."""

    def __init__(self):
        self.calls, self.error = [], None

    def _note(self, name, gpu, stream):
        assert gpu == GPU.index
        self.calls.append((name, stream))
        if self.error is not None:
            raise self.error

    def all_reduce_on(self, core, gpu, send, recv, count, dtype, op, stream):
        self._note("all_reduce", gpu, stream)
        row, out = row_at(send, count, dtype), row_at(recv, count, dtype)
        _braid.all_reduce(core, row, row if send == recv else out, _OPS[op], 0)

    def reduce_scatter_on(self, core, gpu, send, recv, count, dtype, op, stream):
        self._note("reduce_scatter", gpu, stream)
        whole, block = row_at(send, count * core.size, dtype), row_at(recv, count, dtype)
        _braid.reduce_scatter(core, whole, block, _OPS[op], 0)

    def all_gather_on(self, core, gpu, send, recv, count, dtype, stream):
        self._note("all_gather", gpu, stream)
        whole, block = row_at(recv, count * core.size, dtype), row_at(send, count, dtype)
        _braid.all_gather(core, block, whole, 0)

    def all_to_all_on(self, core, gpu, send, recv, count, dtype, stream):
        self._note("all_to_all", gpu, stream)
        sent, got = (row_at(at, count * core.size, dtype) for at in (send, recv))
        _braid.all_to_all(core, sent, got, 0)

    def broadcast_on(self, core, gpu, buf, count, dtype, root, stream):
        self._note("broadcast", gpu, stream)
        _braid.broadcast(core, row_at(buf, count, dtype), root, 0)

    def install(self, monkeypatch):
        """In the module's place. CPU tensors count as tensors of the GPU."""
        for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
            monkeypatch.setattr(_braid, f"{name}_on", getattr(self, f"{name}_on"))
        monkeypatch.setattr(torch.Tensor, "get_device", lambda _tensor: GPU.index)
        monkeypatch.setattr(streams, "raw_stream", lambda _gpu: torch.cuda.current.cuda_stream)
