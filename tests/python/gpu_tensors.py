"""CPU tensors that pass for a GPU's, and the core's calls by addresses on host memory in place of
the real ones: what braid.by_address sees on a machine with a GPU.
"""

from types import SimpleNamespace

import torch
from torch_backend_cuda import GPU, FakeCore

from braid import _braid, by_address

STREAM = 77
"""The handle of torch's current stream."""


class Mark:
    """Of a stream that the GPU has passed."""

    def __init__(self, gpu, stream):
        self.gpu, self.stream = gpu, stream

    def is_done(self):
        return True


def pass_for_gpu(monkeypatch):
    """From here on, in this process; the calls' notes."""
    core = FakeCore()
    core.install(monkeypatch)
    current = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: current)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _gpu: STREAM, raising=False)
    monkeypatch.setattr(by_address, "_torch", None)
    monkeypatch.setattr(_braid, "StreamMark", Mark)
    assert by_address.current_stream(GPU.index) == STREAM
    return core
