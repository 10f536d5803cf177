"""Lanes of GPUs: torch's copies on streams of their own, timed by events.

A short sleep on the GPU comes first, so that the host has enqueued all copies before the first one
begins: what is timed is the link, not the host.
"""

from itertools import cycle, islice

import numpy as np
import torch

from braid.probe.lane import Lane, Running, places
from braid.probe.memory_lane import PERIOD, pattern

_STALE = 0xA5
_SLEEP_CYCLES = 1_000_000  # half a millisecond: time to enqueue some dozens of copies


class Enqueued(Running):
    """Copies between two events."""

    def __init__(self, begin: torch.cuda.Event, end: torch.cuda.Event, copies: int) -> None:
        self._begin, self._end, self._copies = begin, end, copies

    def took_us(self) -> float:
        """Waits for the last one; the mean time of one."""
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e3 / self._copies

    def is_over(self) -> bool:
        """Whether the last one is done."""
        return bool(self._end.query())


class GpuLane(Lane):
    """From one memory to another; `gpu` is whose copy engines work."""

    def __init__(self, name: str, gpu: int, source: torch.device, target: torch.device) -> None:
        self.name = name
        self.start_name, self.end_name = (_name(each) for each in (source, target))
        self._gpu, self._source_on, self._target_on = gpu, source, target
        self._stream = torch.cuda.Stream(device=gpu)
        self._seed = sum(map(ord, name))
        self._shape = (0, 0)

    def resize(self, nbytes: int, slots: int = 1) -> None:
        """Takes buffers of this size; those of the host are pinned. The pattern is repeated where
        it is needed: a host makes gigabytes slowly.
        """
        if self._shape == (slots, nbytes):
            return
        self._shape = (slots, nbytes)
        source = self._filled(self._source_on)
        self._source = self._buffer(self._source_on)
        self._source.copy_(source)
        self._target = self._buffer(self._target_on)
        order = places(slots)
        self._pieces = [(self._target[i], self._source[k]) for i, k in enumerate(order)]
        self._expected = self._filled(self._target_on)[order]
        torch.cuda.synchronize(self._gpu)

    def _filled(self, device: torch.device) -> torch.Tensor:
        slots, nbytes = self._shape
        total = slots * nbytes
        period = torch.from_numpy(np.asarray(pattern(min(total, PERIOD), self._seed))).to(device)
        return period.repeat(-(-total // min(total, PERIOD)))[:total].view(slots, nbytes)

    def _buffer(self, device: torch.device) -> torch.Tensor:
        pinned = device.type == "cpu"
        return torch.empty(self._shape, dtype=torch.uint8, device=device, pin_memory=pinned)

    def wrong_bytes(self) -> int:
        """Every piece once."""
        self._target.fill_(_STALE)
        if self._target_on.type == "cuda":
            torch.cuda.synchronize(self._target_on)
        self.start(len(self._pieces)).took_us()
        if self._target_on.type == "cuda":
            torch.cuda.synchronize(self._target_on)
        return int((self._target != self._expected).sum())

    def start(self, copies: int) -> Enqueued:
        """Enqueues so many copies."""
        with torch.cuda.device(self._gpu), torch.cuda.stream(self._stream):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_SLEEP_CYCLES)
            begin.record()
            for target, source in islice(cycle(self._pieces), copies):
                target.copy_(source, non_blocking=True)
            end.record()
        return Enqueued(begin, end, copies)

    def close(self) -> None:
        """Gives memory back."""
        torch.cuda.synchronize(self._gpu)
        self._shape = (0, 0)
        del self._pieces, self._source, self._target, self._expected


def _name(device: torch.device) -> str:
    return "host" if device.type == "cpu" else f"gpu{device.index}"


def peer(a: int, b: int) -> GpuLane:
    """GPU a writes into GPU b's memory."""
    lane = GpuLane(f"gpu{a}>gpu{b}", a, torch.device("cuda", a), torch.device("cuda", b))
    if not torch.cuda.can_device_access_peer(a, b):
        lane.note = "no peer access: through the host's memory"
    return lane


def to_host(gpu: int) -> GpuLane:
    """A GPU writes into the host's memory."""
    return GpuLane(f"d2h gpu{gpu}", gpu, torch.device("cuda", gpu), torch.device("cpu"))


def from_host(gpu: int) -> GpuLane:
    """A GPU reads the host's memory."""
    return GpuLane(f"h2d gpu{gpu}", gpu, torch.device("cpu"), torch.device("cuda", gpu))
