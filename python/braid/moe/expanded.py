"""The expanded layout of ElasticBuffer: one row for each (token, expert), made of the rows that
came, one for each (token, rank), and added up again before they go back. slots [n, K] are the
expanded rows of a row's choices, -1 for choices elsewhere.
"""

from typing import Any

from braid.arrays import Array
from braid.moe.library import Checks, dtype_name, gpu_of, library_of, shape_of


def slots_of(new: Any, ids: Array, begins: Array, counts: Array) -> Array:
    """[n, K]: the expanded row of every choice, -1 where its expert is elsewhere. Rows of an expert
    lie in the order of (row, choice).
    """
    num_local = shape_of(begins)[0]
    flat = ids.reshape(-1)
    order = new.order_of(flat + (flat < 0) * (num_local + 1))  # choices elsewhere last
    order = order[: int(counts.sum())]
    expert = flat[order]
    place = begins[expert] + new.count_up(shape_of(order)[0]) - (counts.cumsum(0) - counts)[expert]
    slots = new.empty(shape_of(flat), "int64")
    slots[:] = -1
    slots[order] = place
    return slots.reshape(shape_of(ids))


def expand(
    slots: Array, count: int, got: Any, weights: Array | None, with_zeros: bool
) -> tuple[Any, Array | None]:
    """Rows that came, [n, ...] or (rows, scales), and weights [n, K], as `count` expanded ones."""
    places, here = slots, slots >= 0
    if _counts_late(slots):  # choices elsewhere go to a row behind all, which nobody sees
        places, here = slots + (slots < 0) * (count + 1), None

    def spread(rows: Array) -> Array:
        new, shape = library_of(rows), (count + 1, *shape_of(rows)[1:])
        make = new.zeros if with_zeros else new.empty
        out = make(shape, dtype_name(rows))
        to, of = new.raw(out), new.raw(rows)  # no arithmetic: types that have none, too
        for k in range(shape_of(places)[1]):
            _put(to, places[:, k], None if here is None else here[:, k], of)
        return out[:count]

    spread_rows = tuple(map(spread, got)) if isinstance(got, tuple) else spread(got)
    if weights is None:
        return spread_rows, None
    flat = library_of(weights).zeros((count + 1,), "float32")
    _put(flat, places, here, weights)
    return spread_rows, flat[:count]


def fold(
    checks: Checks, slots: Array, rows: int, x: Array, topk_weights: Array | None
) -> tuple[Array, Array | None]:
    """The other way: each token's expanded rows of x [rows, H] added up, and its weights again."""
    kinds = ("bfloat16", "float16", "float32")
    x = checks.array("x", x, kinds, (rows, None))
    here, new = slots >= 0, library_of(x)
    is_whole = _counts_late(slots)
    places = slots * here  # any row for choices elsewhere: zeros take its place
    total = new.zeros((shape_of(slots)[0], shape_of(x)[1]), "float32")
    for k in range(shape_of(slots)[1] if rows else 0):
        of, place = here[:, k], places[:, k]
        if is_whole:
            own = new.cast(x[place], "float32")
            own[~of] = 0
            total += own  # zeros change nothing: no sum from +0 on is a -0
        else:
            total[of] += new.cast(x[place[of]], "float32")
    weights = None
    if topk_weights is not None:
        given = checks.array("topk_weights", topk_weights, ("float32",), (rows,))
        weights = new.zeros(shape_of(slots), "float32")
        if rows:
            weights = given[places]
            weights[~here] = 0
    return new.cast(total, dtype_name(x)), weights


def _counts_late(array: Array) -> bool:
    """On a GPU how many a mask names would have to be waited for: there all are moved, also what
    nobody wants. In host memory that would be work for nothing.
    """
    return gpu_of(array) is not None


def _put(to: Array, places: Array, here: Array | None, of: Array) -> None:
    """to[places[i]] = of[i], for all i or for those that `here` names."""
    if here is None:
        to[places] = of
    else:
        to[places[here]] = of[here]
