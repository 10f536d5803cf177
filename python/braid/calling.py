"""How a comm's collectives are run, and what they return: the result, or a handle of the call."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from braid import _braid, arrays
from braid.arrays import Array, Stream
from braid.by_address import ByAddress
from braid.calls import Calls
from braid.work import GpuWork, Work

T = TypeVar("T")
Answer: TypeAlias = Any
"""A call's result, or with async_op=True its Work."""


class Calling:
    """A comm's core, and its calls in order."""

    def __init__(self, core: _braid.Comm) -> None:
        self._core = core
        self._calls = Calls(core)
        self._by_address = ByAddress(core, self._calls)

    @property
    def rank(self) -> int:
        """This process's number, from 0 to size - 1."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._core.size

    def _run(
        self, name: str, body: Callable[[], None], result: T, stream: int, is_async: bool
    ) -> Answer:
        """`result` once `body` has run, or its handle."""
        if not is_async:
            self._calls.run(name, body)
            return result
        gpu = arrays.gpu_of(result)
        return self._start(name, body, result, gpu, stream)

    def _start(
        self, name: str, body: Callable[[], None], result: T, gpu: int | None, stream: int
    ) -> Work[T]:
        if gpu is None:
            return self._calls.start(name, body, result)
        self._calls.run(name, body)
        return self._enqueued(name, result, gpu, stream)

    def _enqueued(self, name: str, result: T, gpu: int, stream: int) -> Work[T]:
        """The handle of a call that is on the stream."""
        check = partial(self._check_gpu, gpu)
        return GpuWork(name, result, _braid.StreamMark(gpu, stream), check)

    def _short(self, name: str, result: Array, stream: Stream, is_async: bool) -> Answer:
        """`result` of a call that went by addresses, or its handle."""
        if not is_async:
            return result
        on = arrays.stream_of(result, stream)
        return self._enqueued(name, result, result.get_device(), on)

    def _check_gpu(self, gpu: int) -> None:
        """Raises what the work on the GPU has met. Any thread: health() may be asked by each, and
        a comm whose GPU had trouble takes no calls of another one.
        """
        found = json.loads(self._core.health_json()).get("gpu", {"ok": True})
        if not found["ok"]:
            _braid.check_gpu(self._core, gpu)
