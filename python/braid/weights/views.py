"""A view of a whole parameter as boxes of it. Pure.

Whoever loads a checkpoint cuts, turns and reshapes its tensors before they are copied. Such a view
is known by what strided arrays are known by: its lengths, an offset and strides, here in elements
of the whole, which lies row by row. What it is copied to has as many elements in the same order,
and strides of its own.

    whole [4, 6], view [:, 2:5].T          target [3, 4] in a matrix of 10 columns
    size 3, 4; offset 2; strides 1, 6      offset 0; strides 10, 1
    -> the box from (0, 2) on, of 4 by 3, lies at 0 with strides (1, 10)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from braid.errors import InvalidArgument
from braid.weights.pieces import Shape, row_major

MOST_BOXES = 4096
"""Most boxes of one view. One with more is single elements; whole tensors are better then."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A box of the whole, and where it lies. Numbers are of elements."""

    start: Shape
    size: Shape
    offset: int
    strides: Shape
    """By axes of the whole; 0 along those of one element."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """`count` steps along one axis of the whole, each of `step` elements of that axis."""

    count: int
    step: int
    target: int
    """Elements of the target's memory that a step is there."""


def boxes_of_view(
    shape: Shape,
    size: Sequence[int],
    offset: int,
    strides: Sequence[int],
    target_offset: int,
    target_strides: Sequence[int],
) -> list[Placed]:
    """Where the elements of a view of a parameter of `shape` lie in a target.

    InvalidArgument for a view that repeats elements, and for one that no boxes make up.
    """
    if 0 in size:
        return []
    unit = row_major(shape)
    start = [offset // unit[axis] % shape[axis] for axis in range(len(shape))]
    walks: list[list[_Walk]] = [[] for _ in shape]
    for count, stride, target in zip(size, strides, target_strides, strict=True):
        if count > 1:
            _walk(shape, unit, start, walks, (count, stride, target))
    cuts = [_cut(sorted(each, key=lambda walk: walk.step)) for each in walks]
    found = [(tuple(start), target_offset)]
    for axis, (_, _, rest) in enumerate(cuts):
        for walk in rest:
            if len(found) * walk.count > MOST_BOXES:
                raise InvalidArgument(f"a view of {shape} is of more than {MOST_BOXES} boxes")
            found = [
                ((*at[:axis], at[axis] + i * walk.step, *at[axis + 1 :]), place + i * walk.target)
                for at, place in found
                for i in range(walk.count)
            ]
    lengths = tuple(length for length, _, _ in cuts)
    steps = tuple(step for _, step, _ in cuts)
    return [Placed(at, lengths, place, steps) for at, place in found]


def _walk(
    shape: Shape,
    unit: Shape,
    start: list[int],
    walks: list[list[_Walk]],
    one: tuple[int, int, int],
) -> None:
    """Adds a dimension of a view to the axes that it goes along. One that is longer than its axis
    goes on along the axis before it: axes that were made one by a reshape.
    """
    count, stride, target = one
    while count > 1:
        axes = [a for a in range(len(shape)) if shape[a] > 1 and 0 < unit[a] <= stride]
        axis = max(axes, key=unit.__getitem__, default=None)
        if axis is None or stride % unit[axis] or stride // unit[axis] >= shape[axis]:
            raise InvalidArgument(f"a view of {shape} with a stride of {stride} is no boxes of it")
        step = stride // unit[axis]
        if start[axis] + step * (count - 1) < shape[axis]:
            walks[axis].append(_Walk(count, step, target))
            return
        inner = shape[axis] // step
        if start[axis] or shape[axis] % step or count % inner:
            raise InvalidArgument(f"a view of {shape} with rows of {count} is no boxes of it")
        walks[axis].append(_Walk(inner, step, target))
        count //= inner
        stride, target = unit[axis] * shape[axis], target * inner


def _cut(walks: list[_Walk]) -> tuple[int, int, list[_Walk]]:
    """Of one axis: how many elements are one box, their stride at the target, and what is left:
    each of its steps begins another box.
    """
    length, stride = 1, 0
    for number, walk in enumerate(walks):
        if walk.step != length or (number and walk.target != stride * length):
            return length, stride, walks[number:]
        stride = stride or walk.target
        length *= walk.count
    return length, stride, []
