"""Views of whole parameters as boxes: against NumPy's own views."""

import math
import random

import numpy as np
import pytest

import braid
from braid.weights.views import MOST_BOXES, boxes_of_view


def random_view(rng, array):
    """Cut, turned, split and made one, as loaders do."""
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(["cut", "turn", "split", "join", "pick"])
        axis = rng.randrange(max(1, array.ndim))
        if kind == "cut" and array.ndim:
            begin = rng.randrange(array.shape[axis])
            end = rng.randint(begin + 1, array.shape[axis])
            array = array[(slice(None),) * axis + (slice(begin, end),)]
        elif kind == "turn":
            array = array.transpose(rng.sample(range(array.ndim), array.ndim))
        elif kind == "split" and array.ndim and array.shape[axis] % 2 == 0:
            shape = (*array.shape[:axis], 2, array.shape[axis] // 2, *array.shape[axis + 1 :])
            array = array.reshape(shape) if is_view(array, shape) else array
        elif kind == "join" and array.ndim > 1:
            axis = rng.randrange(array.ndim - 1)
            shape = (*array.shape[:axis], -1, *array.shape[axis + 2 :])
            array = array.reshape(shape) if is_view(array, shape) else array
        elif kind == "pick" and array.ndim > 1:
            array = array[(slice(None),) * axis + (rng.randrange(array.shape[axis]),)]
    return array


def is_view(array, shape):
    return np.shares_memory(array.reshape(shape), array)


def elements(strides):
    return [stride // 8 for stride in strides]


def is_placed(seed):
    """Whether a random view's boxes put each element where a copy would; None: it was refused."""
    rng = random.Random(seed)
    shape = tuple(rng.choice([1, 2, 3, 4, 6, 8]) for _ in range(rng.randint(1, 4)))
    whole = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    view = random_view(rng, whole)
    order = rng.sample(range(view.ndim), view.ndim)  # the target lies in an order of its own
    home = np.full((3, *(view.shape[axis] + 1 for axis in order)), -1, np.int64)
    target = home[(1, *(slice(view.shape[axis]) for axis in order))]
    target = target.transpose([order.index(axis) for axis in range(view.ndim)])
    wanted = home.copy()
    at(wanted, offset_of(target, home), view.shape, elements(target.strides))[...] = view
    try:
        found = boxes_of_view(
            shape, view.shape, offset_of(view, whole), elements(view.strides),
            offset_of(target, home), elements(target.strides),
        )  # fmt: skip
    except braid.InvalidArgument:
        return None
    for box in found:
        part = whole[tuple(slice(s, s + n) for s, n in zip(box.start, box.size, strict=True))]
        place = at(home, box.offset, box.size, box.strides)
        if (place != -1).any():
            return False  # written twice
        place[...] = part
    return np.array_equal(home, wanted)


def offset_of(view, whole):
    return (view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // 8


def at(memory, offset, size, strides):
    steps = [8 * stride for stride in strides]
    return np.lib.stride_tricks.as_strided(memory.reshape(-1)[offset:], size, steps)


def test_each_element_is_where_a_copy_would_put_it():
    """Refused are rows made one of which not all are whole: no loader has them, and few are."""
    found = [is_placed(seed) for seed in range(500)]
    assert False not in found
    assert found.count(True) > 470


def test_a_part_of_a_matrix_turned_is_one_box():
    (found,) = boxes_of_view((4, 6), (3, 4), 2, (1, 6), 0, (10, 1))
    assert (found.start, found.size, found.offset, found.strides) == ((0, 2), (4, 3), 0, (1, 10))


def test_what_is_no_boxes_is_refused():
    with pytest.raises(braid.InvalidArgument, match="stride of 0"):
        boxes_of_view((4,), (3,), 0, (0,), 0, (1,))
    with pytest.raises(braid.InvalidArgument, match="rows of 5"):
        boxes_of_view((4, 4), (5,), 0, (1,), 0, (1,))
    with pytest.raises(braid.InvalidArgument, match=f"more than {MOST_BOXES} boxes"):
        boxes_of_view((20000,), (10000,), 0, (2,), 0, (1,))
    assert boxes_of_view((4,), (0,), 0, (1,), 0, (1,)) == []
