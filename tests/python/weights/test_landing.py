"""Versions land in arrays of any form, and in nothing beside them."""

import numpy as np
import pytest
from engine_peers import options

import braid
from braid.weights import Parameter, Receiver, Sender
from braid.weights import receiver as receiver_module
from braid.weights.landing import beside, copy_over

LIMIT_S = 30
MODES = ["two buffers", "in place"]


def served(sent, parameters, mode="two buffers", before=lambda: None):
    """Brings a version from arrays to a worker's parameters of the same names."""
    with (
        braid.Engine(**options("local", "t")) as ours,
        braid.Engine(**options("local", "w")) as theirs,
        Sender(ours, 0, [Parameter(name, array) for name, array in sent.items()]) as sender,
        Receiver(theirs, 0, parameters, mode=mode) as receiver,
    ):
        told = [sender.describe(), receiver.describe()]
        sender.join(told)
        receiver.join(told)
        before()
        sender.update(1, LIMIT_S)
        assert receiver.version == 1
        assert receiver.trouble == ""


def numbers(*shape, dtype=np.float32):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(dtype)


def forms(zeros):
    """Arrays of (3, 4), each with the memory that it is a part of."""
    turned, wide, sparse = zeros(4, 3), zeros(3, 9), zeros(7, 8)
    middle, cube = zeros(5, 3, 4), zeros(4, 2, 3)
    return {
        "as it comes": (row := zeros(3, 4), row),
        "turned": (turned.T, turned),
        "columns": (wide[:, 2:6], wide),
        "every second": (sparse[1::2, ::2], sparse),
        "one of many": (middle[2], middle),
        "turned in another": (cube[:, 1].T, cube),
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", forms(lambda *shape: np.zeros(shape)))
def test_arrays_of_any_form(form, mode):
    array, memory = forms(lambda *shape: np.full(shape, -1, np.float32))[form]
    served({"a": numbers(3, 4)}, [Parameter("a", array)], mode)
    assert np.array_equal(array, numbers(3, 4))
    assert (memory == -1).sum() == memory.size - array.size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool", "complex64"])
@pytest.mark.parametrize("mode", MODES)
def test_tensors_of_any_form(mode, dtype):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    sent = torch.from_numpy(numbers(3, 4) % 7 - 3).to(kind)
    found = forms(lambda *shape: torch.zeros(shape).to(kind))
    served(
        dict.fromkeys(found, sent),
        [Parameter(name, array) for name, (array, _) in found.items()],
        mode,
    )
    for array, memory in found.values():
        assert array.tolist() == sent.tolist()
        left = memory.to(torch.complex64).ne(0).sum()
        assert left == sent.to(torch.complex64).ne(0).sum()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("mode", MODES)
def test_types_that_numpy_does_not_have_itself(mode, dtype):
    kind = getattr(pytest.importorskip("ml_dtypes"), dtype)
    array = np.zeros((4, 3), kind).T
    sent = (numbers(3, 4) % 7 - 3).astype(kind)
    served({"a": sent}, [Parameter("a", array)], mode)
    assert np.array_equal(array, sent)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_worker_has_beside_its_parameters_stays_as_it_is(mode):
    both = np.zeros((4, 2), np.float32)

    def own():
        both[2:] = 7

    part = Parameter("q", both, (2, 2), size=(2, 2), strides=(2, 1))
    served({"q": numbers(2, 2)}, [part], mode, before=own)
    assert np.array_equal(both[:2], numbers(2, 2))
    assert (both[2:] == 7).all()


@pytest.mark.parametrize("mode", MODES)
def test_parameters_that_are_views_of_one_memory(mode):
    """By a view object of its own each: of all of it, of some columns, turned."""
    fused = np.zeros((4, 2), np.float32)
    whole = [
        Parameter("q", fused[:], (2, 2), size=(2, 2), strides=(2, 1)),
        Parameter("k", fused.T.T, (2, 2), size=(2, 2), strides=(2, 1), offset=4),
    ]
    wide = np.zeros((2, 6), np.float32)
    columns = [
        Parameter("v", wide[:, 2:4]),
        Parameter("o", wide[:, 4:]),
        Parameter("p", wide[:, :2]),
    ]
    # Both span the same memory, by other strides.
    square = np.zeros((2, 2), np.float32)
    turns = [
        Parameter("d", square, (1, 2), size=(1, 2)),
        Parameter("e", square.T, (2, 1), size=(2, 1), strides=(2, 1), offset=1),
    ]
    sent = {name: numbers(2, 2) * 10**n for n, name in enumerate("qkvop")}
    sent |= {"d": numbers(1, 2) * 3, "e": numbers(2, 1) * 5}
    sent["d"][0, 1] = sent["e"][0, 0] = 8  # one element is of both
    served(sent, [*whole, *columns, *turns], mode)
    assert np.array_equal(fused, np.concatenate([sent["q"], sent["k"]]))
    assert np.array_equal(wide, np.concatenate([sent["p"], sent["v"], sent["o"]], 1))
    assert square.tolist() == [[3, 8], [0, 10]]


@pytest.mark.parametrize("mode", MODES)
def test_one_element_none_and_steps_that_nobody_takes(mode):
    backwards = np.zeros((4, 1), np.float32)[:, ::-1]
    arrays = {
        "one": np.zeros((), np.float64),
        "none": np.zeros((0, 3), np.float32),
        "none of any strides": np.zeros((4, 0), np.float32)[::-1],
        "one step back": backwards,
    }
    sent = {name: numbers(*array.shape, dtype=array.dtype) for name, array in arrays.items()}
    served(sent, [Parameter(name, array) for name, array in arrays.items()], mode)
    assert all(np.array_equal(arrays[name], sent[name]) for name in arrays)


@pytest.mark.parametrize("mode", MODES)
def test_a_models_own_parameters_and_tensors_of_inference_mode(mode):
    torch = pytest.importorskip("torch")
    own = torch.nn.Parameter(torch.zeros(3, 4))
    with torch.inference_mode():
        quick = torch.zeros(3, 4)
    served(
        {"own": numbers(3, 4), "quick": numbers(3, 4)},
        [Parameter("own", own), Parameter("quick", quick)],
        mode,
    )
    assert np.array_equal(own.detach().numpy(), numbers(3, 4))
    assert np.array_equal(quick.numpy(), numbers(3, 4))


def test_a_trainers_array_that_repeats_its_elements():
    array = np.zeros((3, 4), np.float32)
    served({"a": np.broadcast_to(np.float32(5), (3, 4))}, [Parameter("a", array)])
    assert (array == 5).all()


@pytest.mark.parametrize("mode", MODES)
def test_runs_that_lie_nearer_than_they_are_long(mode):
    """Steps of 10 and 4 elements between runs of 4, on either side."""
    for is_target in (False, True):
        pitched = np.lib.stride_tricks.as_strided(numbers(2, 10), (2, 2, 4), (40, 16, 4))
        turned = numbers(2, 2, 4).transpose(1, 0, 2) * 100
        sent, array = (turned, pitched) if is_target else (pitched, turned)
        served({"a": sent}, [Parameter("a", array)], mode)
        assert np.array_equal(array, sent)


def looked_at(monkeypatch, mode):
    """What on_pause, the copy and on_resume find: (who, receiver.version, the array's element)."""
    array, seen, receivers = np.zeros(8, np.float32), [], []

    def look(who):
        seen.append((who, receivers[0].version, float(array[0])))

    def copy(*both):
        look("copy")
        copy_over(*both)
        look("copied")

    monkeypatch.setattr(receiver_module, "copy_over", copy)
    sent = np.zeros(8, np.float32)
    with (
        braid.Engine(**options("local", "t")) as ours,
        braid.Engine(**options("local", "w")) as theirs,
        Sender(ours, 0, [Parameter("a", sent)]) as sender,
        Receiver(
            theirs, 0, [Parameter("a", array)], mode=mode, on_pause=lambda: look("pause"),
            on_resume=lambda _: look("resume"),
        ) as receiver,
    ):  # fmt: skip
        receivers.append(receiver)
        told = [sender.describe(), receiver.describe()]
        sender.join(told)
        receiver.join(told)
        for version in (1, 2):
            if version == 2:
                seen.clear()
            sent[:] = version
            sender.update(version, LIMIT_S)
    return seen


def test_no_version_is_named_while_it_is_copied_over(monkeypatch):
    assert looked_at(monkeypatch, "two buffers") == [
        ("pause", 1, 1), ("copy", None, 1), ("copied", None, 2), ("resume", 2, 2),
    ]  # fmt: skip


def test_in_place_nothing_lands_before_the_pause(monkeypatch):
    assert looked_at(monkeypatch, "in place") == [("pause", 1, 1), ("resume", 2, 2)]


def test_with_two_buffers_a_worker_pauses_when_all_has_landed(monkeypatch):
    """A version that does not come pauses nobody."""
    paused = []
    with (
        braid.Engine(**options("local", "t")) as ours,
        braid.Engine(**options("local", "w")) as theirs,
        Sender(ours, 0, [Parameter("a", np.ones(8))]) as sender,
        Receiver(
            theirs, 0, [Parameter("a", np.zeros(8))], on_pause=lambda: paused.append(1)
        ) as receiver,
    ):
        told = [sender.describe(), receiver.describe()]
        sender.join(told)
        receiver.join(told)
        monkeypatch.setattr(sender, "_send_all", lambda *_: None)
        with pytest.raises(braid.Timeout):
            sender.update(1, 0.5)
        assert paused == []
        monkeypatch.undo()
        sender.update(2, LIMIT_S)
        assert paused == [1]


def test_memory_beside_is_as_large_as_what_is_spanned():
    wide = np.zeros((4, 6), np.float32)
    rows, again = Parameter("a", wide[:2]), Parameter("b", wide[:2])
    first, second = beside([rows, again])
    assert np.shares_memory(first.array, second.array)
    assert not np.shares_memory(first.array, wide)
    assert first.array.base.nbytes == 48
    first.array[...] = 3
    copy_over([rows, again], [first, second])
    assert (wide == [[3] * 6] * 2 + [[0] * 6] * 2).all()
