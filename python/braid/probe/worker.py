"""Work beside which calls are made: products of matrices."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any

import numpy as np

_MOST_ROUNDS = 100_000


class Worker(ABC):
    """Something that computes."""

    @abstractmethod
    def work(self, rounds: int) -> None:
        """So many products; over when this returns."""

    @abstractmethod
    def beside(self, call: Callable[[], None], rounds: int) -> None:
        """The same while a call is made; both are over, or begun on the GPU, when this returns."""

    def rounds_for(self, us: float) -> int:
        """Products that take about so long."""
        self.work(2)
        start = perf_counter_ns()
        self.work(4)
        one_us = (perf_counter_ns() - start) / 4e3
        return int(min(max(us / max(one_us, 1e-3), 1), _MOST_ROUNDS))


class HostWorker(Worker):
    """On the CPU; the call is a thread's."""

    def __init__(self, side: int = 256) -> None:
        self._a = np.ones((side, side), dtype=np.float32)
        self._b = np.empty_like(self._a)
        self._thread = ThreadPoolExecutor(1)

    def work(self, rounds: int) -> None:
        """So many products."""
        for _ in range(rounds):
            np.matmul(self._a, self._a, out=self._b)

    def beside(self, call: Callable[[], None], rounds: int) -> None:
        """The call in a thread of its own."""
        made = self._thread.submit(call)
        self.work(rounds)
        made.result()


class GpuWorker(Worker):
    """On the GPU; the call is on a stream of its own."""

    def __init__(self, side: int = 4096) -> None:
        import torch

        self._torch: Any = torch
        self._a = torch.ones((side, side), dtype=torch.bfloat16, device="cuda")
        self._b = torch.empty_like(self._a)
        self._stream = torch.cuda.Stream()

    def _begin(self, rounds: int) -> None:
        for _ in range(rounds):
            self._torch.matmul(self._a, self._a, out=self._b)

    def work(self, rounds: int) -> None:
        """So many products."""
        self._begin(rounds)
        self._torch.cuda.synchronize()

    def beside(self, call: Callable[[], None], rounds: int) -> None:
        """Both begin behind what the current stream has to do."""
        self._stream.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(self._stream):
            call()
        self._begin(rounds)
