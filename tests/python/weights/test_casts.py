"""Trainers whose dtype is another than the workers', however their parameters lie; what users' own
functions raise.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_peers import options

import braid
from braid.weights import Parameter, Receiver, Sender

LIMIT_S = 30
WHOLE = np.arange(6 * 8, dtype=np.float32).reshape(6, 8)


def joined(senders, receivers):
    told = [side.describe() for side in (*senders, *receivers)]
    for side in (*senders, *receivers):
        side.join(told)


def sent(held, kept, version=1, **sender_options):
    """A version of one trainer, who holds `held`, at one worker, who keeps `kept`."""
    with (
        braid.Engine(**options("local", "trainer")) as trainer,
        braid.Engine(**options("local", "worker")) as worker,
        Sender(trainer, 0, held, **sender_options) as sender,
        Receiver(worker, 0, kept) as receiver,
    ):
        joined([sender], [receiver])
        sender.update(version, LIMIT_S)
        receiver.wait(version, LIMIT_S)


FUSED = np.concatenate([np.full((2, 8), -1, np.float32), WHOLE, np.full((3, 8), -2, np.float32)])
TURNED = np.ascontiguousarray(WHOLE.T)
HALVES = np.concatenate([WHOLE[3:], WHOLE[:3]])

HELD = {
    "in one piece": [Parameter("w", WHOLE.copy())],
    "a part of a fused matrix": [
        Parameter("w", FUSED, (6, 8), offset=16, size=(6, 8), strides=(8, 1))
    ],
    "turned, by strides": [Parameter("w", TURNED, (6, 8), size=(6, 8), strides=(1, 6))],
    "turned, by a view": [Parameter("w", TURNED.T)],
    "every other column": [Parameter("w", np.repeat(WHOLE, 2, axis=1)[:, ::2])],
    "two boxes": [Parameter("w", HALVES, (6, 8), [((3, 0), (3, 8)), ((0, 0), (3, 8))])],
}


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.float32])
@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_wherever_they_lie_every_element_is_right(held, dtype):
    found = np.full((6, 8), -7, dtype)
    sent(held, [Parameter("w", found)])
    np.testing.assert_array_equal(found, WHOLE.astype(dtype))


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_a_cast_may_keep_the_order_of_its_array(held):
    """NumPy's astype() does, of a turned one."""
    found = np.full((6, 8), -7, np.float64)
    sent(held, [Parameter("w", found)], cast=lambda _name, array, dtype: array.astype(dtype))
    np.testing.assert_array_equal(found, WHOLE)


def test_torch_tensors_that_lie_turned():
    torch = pytest.importorskip("torch")
    found = torch.full((6, 8), -7, dtype=torch.bfloat16)
    held = torch.from_numpy(TURNED.copy()).T
    cast = lambda _name, tensor, dtype: tensor.to(getattr(torch, dtype))  # noqa: E731
    sent([Parameter("w", held)], [Parameter("w", found)], cast=cast)
    assert torch.equal(found, torch.from_numpy(WHOLE.copy()).to(torch.bfloat16))


def test_two_workers_of_two_dtypes():
    """Each has the other half of one parameter."""
    halves = [np.full((3, 8), -7, dtype) for dtype in (np.float64, np.float16)]
    with (
        braid.Engine(**options("local", "trainer")) as trainer,
        braid.Engine(**options("local", "w0")) as first,
        braid.Engine(**options("local", "w1")) as second,
        Sender(trainer, 0, [Parameter("w", WHOLE.copy())]) as sender,
        Receiver(first, 0, [Parameter("w", halves[0], (6, 8), start=(0, 0))]) as upper,
        Receiver(second, 1, [Parameter("w", halves[1], (6, 8), start=(3, 0))]) as lower,
    ):
        joined([sender], [upper, lower])
        sender.update(1, LIMIT_S)
    np.testing.assert_array_equal(halves[0], WHOLE[:3].astype(np.float64))
    np.testing.assert_array_equal(halves[1], WHOLE[3:].astype(np.float16))


def test_a_cast_of_another_shape_is_named():
    with pytest.raises(
        braid.InvalidArgument, match=r"parameter 'w': the cast made float64 of \(48,\).*\(6, 8\)"
    ):
        sent(
            [Parameter("w", WHOLE.copy())],
            [Parameter("w", np.zeros((6, 8), np.float64))],
            cast=lambda _name, array, dtype: array.astype(dtype).ravel(),
        )


# --- what users' functions raise ---


@pytest.mark.parametrize("who", [0, 1])
def test_a_cast_that_raises_ends_the_version_at_once_for_all(who):
    def broken(name, _array, _dtype):
        raise ValueError(f"no scale for {name}")

    found = np.full((6, 8), -7, np.float64)
    with (
        braid.Engine(**options("local", "t0")) as one,
        braid.Engine(**options("local", "t1")) as two,
        braid.Engine(**options("local", "w0")) as worker,
        Sender(one, 0, [Parameter("w", WHOLE[:3].copy(), (6, 8), start=(0, 0))],
               **({"cast": broken} if who == 0 else {})) as first,
        Sender(two, 1, [Parameter("w", WHOLE[3:].copy(), (6, 8), start=(3, 0))],
               **({"cast": broken} if who == 1 else {})) as second,
        Receiver(worker, 0, [Parameter("w", found)]) as receiver,
    ):  # fmt: skip
        joined([first, second], [receiver])
        began = time.monotonic()
        with ThreadPoolExecutor(2) as threads:
            done = [threads.submit(side.update, 1, LIMIT_S) for side in (first, second)]
            with pytest.raises(ValueError, match="no scale for w"):
                done[who].result()
            with pytest.raises(braid.Cancelled, match="no scale for w"):
                done[1 - who].result()
        assert time.monotonic() - began < LIMIT_S / 2
        assert receiver.version is None


class Callbacks:
    """Each raises, once, if it is among `broken`."""

    def __init__(self, *broken):
        self.broken, self.raised = list(broken), []

    def of(self, name):
        def called(*_):
            if name in self.broken:
                self.broken.remove(name)
                self.raised.append(name)
                raise ValueError(f"{name}: not today")

        return called

    def all(self):
        return {name: self.of(name) for name in ("on_pause", "on_resume", "on_failure")}


@pytest.mark.parametrize("broken", [["on_pause"], ["on_pause", "on_failure"], ["on_resume"]])
def test_a_worker_outlives_what_its_callbacks_raise(broken):
    callbacks = Callbacks(*broken)
    held, found = np.zeros((6, 8), np.float32), np.full((6, 8), -7, np.float32)
    with (
        braid.Engine(**options("local", "trainer")) as trainer,
        braid.Engine(**options("local", "worker")) as worker,
        Sender(trainer, 0, [Parameter("w", held)]) as sender,
        Receiver(worker, 0, [Parameter("w", found)], **callbacks.all()) as receiver,
    ):
        joined([sender], [receiver])
        if broken == ["on_resume"]:
            sender.update(1, LIMIT_S)
            assert "version 1 is served; on_resume raised ValueError" in receiver.trouble
        else:
            with pytest.raises(braid.Cancelled, match="on_pause: not today"):
                sender.update(1, LIMIT_S)
        held[...] = WHOLE
        sender.update(2, LIMIT_S)
        receiver.wait(2, LIMIT_S)
    np.testing.assert_array_equal(found, WHOLE)
    assert callbacks.raised == broken


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"part": 0}, "asked for part of at least 1 byte, found 0"),
        ({"part": -1}, "found -1"),
        ({"part": "4MiB"}, "found '4MiB'"),
        ({"watermark": 1e6}, "asked for watermark of at least 1 byte, found 1000000.0"),
        ({"checks": "crc32"}, "asked for checks of True or False, found 'crc32'"),
    ],
)
def test_options_are_checked(wrong, words):
    with (
        braid.Engine(**options("local", "trainer")) as trainer,
        pytest.raises(braid.InvalidArgument, match=words),
    ):
        Sender(trainer, 0, [Parameter("w", WHOLE.copy())], **wrong)


@pytest.mark.parametrize("version", [-5, "7", 2**63, True])
def test_versions_are_checked(version):
    held, found = [Parameter("w", WHOLE.copy())], [Parameter("w", np.zeros((6, 8), np.float32))]
    with pytest.raises(braid.InvalidArgument, match="asked for a version from 0 to"):
        sent(held, found, version=version)
