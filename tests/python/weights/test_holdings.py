"""What a rank may hold: arrays whose elements strides tell of, and which are written once each."""

import numpy as np
import pytest
from engine_peers import options

import braid
from braid.weights import Parameter, Receiver
from braid.weights.holdings import check_target

RECORDS = np.zeros(4, [("x", "f4"), ("y", "i2")])


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(4)[::-1], r"parameter 'a': .*none of them negative, found \(-8,\) bytes"),
        (RECORDS["x"], r"parameter 'a': .*whole elements of 4 bytes.*found \(6,\) bytes"),
        ([1.0], "parameter 'a': .*asked for a NumPy array or a tensor, found list"),
    ],
)
def test_arrays_that_strides_do_not_tell_of(array, words):
    with pytest.raises(braid.InvalidArgument, match=words):
        Parameter("a", array)


def test_tensors_that_are_not_what_lies_in_their_memory():
    torch = pytest.importorskip("torch")
    for tensor, words in [
        (torch.zeros(4, device="meta"), "memory of its own .* found a Tensor on 'meta'"),
        (torch.zeros(4, dtype=torch.complex64).conj(), "conjugated or negated"),
        (torch.zeros(4, dtype=torch.complex64).conj().imag, "conjugated or negated"),
    ]:
        with pytest.raises(braid.InvalidArgument, match=f"parameter 'a': .*{words}"):
            Parameter("a", tensor)


@pytest.mark.parametrize(
    "far",
    [
        {"size": (2, 3), "strides": (3, 1), "offset": 7},
        {"size": (3, 4), "strides": (5, 1)},
        {"shape": (4, 4), "boxes": [((0, 0), (2, 4)), ((2, 0), (2, 4))]},
    ],
)
def test_a_box_that_goes_on_behind_the_array_is_refused(far):
    parameter = Parameter("a", np.zeros((3, 4)), **{"shape": far.get("size", ()), **far})
    with pytest.raises(braid.InvalidArgument, match=r"parameter 'a': .* the array's last is 11"):
        parameter.pieces(0)


def overlapping(size, strides):
    return Parameter("a", np.zeros(40), size, size=size, strides=strides)


@pytest.mark.parametrize(
    ("size", "strides"), [((3, 4), (0, 1)), ((3, 4), (1, 1)), ((4, 4), (3, 2)), ((2, 2), (4, 4))]
)
def test_a_worker_needs_memory_for_each_element(size, strides):
    with pytest.raises(braid.InvalidArgument, match=r"parameter 'a': .* several in one place"):
        check_target(overlapping(size, strides))
    with (
        braid.Engine(**options("local", "w")) as engine,
        pytest.raises(braid.InvalidArgument, match="several in one place"),
    ):
        Receiver(engine, 0, [overlapping(size, strides)])


@pytest.mark.parametrize(
    ("size", "strides"), [((3, 2), (2, 3)), ((3, 4), (1, 3)), ((1, 4), (0, 2)), ((0, 4), (0, 0))]
)
def test_elements_between_each_other_are_no_overlap(size, strides):
    check_target(overlapping(size, strides))


def test_a_worker_needs_memory_that_it_may_write():
    array = np.zeros(4)
    array.flags.writeable = False
    with pytest.raises(braid.InvalidArgument, match=r"parameter 'a': .* found a read-only one"):
        check_target(Parameter("a", array))
    wide = np.broadcast_to(np.zeros(1), (4,))
    with pytest.raises(braid.InvalidArgument, match=r"parameter 'a'"):
        check_target(Parameter("a", wide))
