"""torch's current stream of a GPU, at little cost for the host."""

from typing import Any

import torch

_MOST_KNOWN = 64

raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""Of a GPU's number: the handle of its current stream. What torch's own compiled programs ask for
theirs; None where this torch has no such function.
"""


class CallerStream:
    """caller() is the current stream of one GPU: torch's object, and the handle.

    Objects are kept by their handle. A handle that a program gave back, and that another stream has
    got, still means the same to the driver, so the object does as well.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._index = device, device.index
        self._known: dict[int, tuple[Any, int]] = {}

    def __call__(self) -> tuple[Any, int]:
        return self._known.get(raw_stream(self._index)) or self._look_up()

    def _look_up(self) -> tuple[Any, int]:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        stream = torch.cuda.current_stream(self._device)
        handle = int(stream.cuda_stream)
        self._known[handle] = stream, handle
        return stream, handle
