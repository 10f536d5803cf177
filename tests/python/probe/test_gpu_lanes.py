"""GPU lanes on a torch that is not there: what is enqueued where, and that lies are seen."""

import contextlib
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from braid.probe import lane_kinds, pairs
from braid.probe.effort import Effort
from braid.probe.memory_lane import PERIOD, pattern


class Device:
    def __init__(self, kind, index=None):
        self.type, self.index = kind, index


class Tensor:
    """A NumPy array that answers as a tensor does."""

    def __init__(self, array, device=None, pinned=False):
        self.array, self.device, self.pinned = array, device, pinned

    @property
    def shape(self):
        return self.array.shape

    def view(self, *shape):
        return Tensor(self.array.reshape(shape), self.device)

    def to(self, device):
        return Tensor(self.array.copy(), device)

    def copy_(self, other, non_blocking=False):
        torch.log.append((other.device.type if other.device else "cpu", self.device.type))
        self.array[...] = other.array
        if torch.lies and non_blocking:
            self.array.flat[0] ^= 1

    def repeat(self, times):
        return Tensor(np.tile(self.array, times), self.device)

    def fill_(self, value):
        self.array.fill(value)

    def __getitem__(self, place):
        return Tensor(self.array[place], self.device)

    def __ne__(self, other):
        return self.array != other.array

    __hash__ = None


class Event:
    at = 0.0

    def __init__(self, **_options):
        pass

    def record(self):
        Event.at += 0.5
        self.at = Event.at

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return later.at - self.at

    def query(self):
        return False


def make_torch():
    cuda = SimpleNamespace(
        Event=Event,
        Stream=lambda device: f"stream of {device}",
        stream=lambda _: contextlib.nullcontext(),
        device=lambda _: contextlib.nullcontext(),
        synchronize=lambda *_: None,
        _sleep=lambda _: None,
        can_device_access_peer=lambda a, b: (a, b) != (1, 0),
    )
    return SimpleNamespace(
        cuda=cuda,
        device=Device,
        uint8=np.uint8,
        from_numpy=lambda array: Tensor(array),
        empty=lambda shape, dtype, device, pin_memory: Tensor(
            np.zeros(shape, dtype), device, pin_memory
        ),
        Tensor=Tensor,
        log=[],
        lies=False,
    )


torch = make_torch()


@pytest.fixture
def gpu_lane(monkeypatch):
    """The module, made with that torch."""
    torch.log.clear()
    torch.lies = False
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "braid.probe.gpu_lane", raising=False)
    made = importlib.import_module("braid.probe.gpu_lane")
    yield made
    monkeypatch.delitem(sys.modules, "braid.probe.gpu_lane", raising=False)


def test_names_and_notes(gpu_lane):
    there, back = gpu_lane.peer(0, 1), gpu_lane.peer(1, 0)
    assert (there.name, there.start_name, there.end_name) == ("gpu0>gpu1", "gpu0", "gpu1")
    assert there.note == ""
    assert "no peer access" in back.note
    assert (gpu_lane.to_host(3).start_name, gpu_lane.from_host(3).start_name) == ("gpu3", "host")


def test_copies_go_where_they_should(gpu_lane):
    lane = gpu_lane.to_host(0)
    lane.resize(64, 4)
    assert lane._target.pinned
    assert not lane._source.pinned
    torch.log.clear()
    assert lane.start(6).took_us() == pytest.approx(500 / 6)
    assert torch.log == [("cuda", "cpu")] * 6
    lane.close()


def test_the_pattern_goes_on_behind_its_period(gpu_lane):
    lane = gpu_lane.peer(0, 1)
    lane.resize(PERIOD + 5)
    whole = pattern(PERIOD + 5, lane._seed)
    assert (lane._source.array == whole).all()
    source = lane._source
    lane.resize(PERIOD + 5)
    assert lane._source is source  # nothing to do
    lane.resize(16)
    assert lane.wrong_bytes() == 0


@pytest.mark.parametrize("lies", [False, True])
def test_every_byte_is_compared(gpu_lane, lies):
    lane = gpu_lane.peer(0, 1)
    lane.resize(1000, 3)
    torch.lies = lies
    assert lane.wrong_bytes() == (3 if lies else 0)


@pytest.mark.usefixtures("gpu_lane")
def test_a_pair_of_gpus():
    series = pairs.gpu_pair(0, 1, pairs.Settings(1 << 10, 3, 5.0), 1.0)
    assert [one.group for one in series] == ["one way"] * 2 + ["both ways"] + ["latency"] * 2
    assert {one.verdict for one in series} == {"ok"}
    torch.lies = True
    series = pairs.gpu_pair(0, 1, pairs.Settings(1 << 10, 3, 5.0), 1.0)
    assert {one.verdict for one in series} == {"wrong data"}


def test_the_host_kind(gpu_lane):
    ways = [lane_kinds.Ways("gpu0", gpu_lane.to_host(0), gpu_lane.from_host(0))]
    (job, *_rest) = lane_kinds.host(ways, [1 << 20])
    (one,) = job.run(Effort(3, 1.0, 1), lambda _: None)
    assert (one.start, one.end, one.wrong_bytes) == ("gpu0", "host", 0)
