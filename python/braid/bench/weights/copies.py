"""As many bytes as a step moves, from the same GPUs to the same GPUs, by the driver's copies: what
the links give to whoever asks for nothing else.
"""

from time import perf_counter_ns

import torch

from braid.bench.weights.jobs import Shape


class Copies:
    """From each trainer's GPU to each worker's one copy. Of one process."""

    def __init__(self, shape: Shape, nbytes: int) -> None:
        each = nbytes // (shape.trainers * shape.workers)
        self._sources = [
            torch.ones(shape.workers, each, dtype=torch.uint8, device=shape.place("trainer", rank))
            for rank in range(shape.trainers)
        ]
        self._targets = [
            torch.zeros(shape.trainers, each, dtype=torch.uint8, device=shape.place("worker", rank))
            for rank in range(shape.workers)
        ]
        self._streams = [
            [(torch.cuda.Stream(b.device), torch.cuda.Stream(a.device)) for b in self._targets]
            for a in self._sources
        ]
        self._settle()

    def us(self) -> float:
        """Until all have come. All copies are under way at once, each in a stream of its own; a
        trainer begins with another worker than its neighbour does.
        """
        began = perf_counter_ns()
        for turn in range(len(self._targets)):
            for number, source in enumerate(self._sources):
                to = (number + turn) % len(self._targets)
                there, here = self._streams[number][to]
                # torch orders a copy between GPUs by the current streams of both.
                with torch.cuda.stream(there), torch.cuda.stream(here):
                    self._targets[to][number].copy_(source[to], non_blocking=True)
        self._settle()
        return (perf_counter_ns() - began) / 1e3

    def _settle(self) -> None:
        for device in {each.device for each in (*self._sources, *self._targets)}:
            torch.cuda.synchronize(device)
