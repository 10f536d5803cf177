"""The forms in which torch has a call: overloads in C++, here one method each.

One form takes lists of tensors and an object of options. The other takes plain tensors, and then
root, operator and timeout by themselves. Both may name their arguments, each by its own names. What
follows the tensors differs in type, so asked() tells it apart wherever it stands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, SupportsIndex

from torch import Tensor
from torch.distributed import ReduceOp

from braid.torch.errors import InvalidArgument

_OPERATORS = (ReduceOp, ReduceOp.RedOpType)


@dataclass(frozen=True)
class Asked:
    """What a call was told besides its tensors."""

    op: Any
    root: int
    timeout: timedelta | None
    is_async: bool


def asked(function: str, *given: Any, takes: str = "") -> Asked:
    """Of options, a timeout, and the "root" or "op" that the call `takes`, in any order. None: not
    told. InvalidArgument for what the call does not take.
    """
    op, root, timeout, is_async = ReduceOp(ReduceOp.SUM), 0, None, True
    for each in given:
        if each is None:
            continue
        is_op = isinstance(each, _OPERATORS)  # which are numbers, too
        if isinstance(each, timedelta):
            timeout = each
        elif is_op and "op" in takes:
            op = each
        elif not is_op and isinstance(each, SupportsIndex) and "root" in takes:
            root = each.__index__()
        elif hasattr(each, "timeout"):
            op, root = getattr(each, "reduceOp", op), getattr(each, "rootRank", root)
            timeout, is_async = each.timeout, getattr(each, "asyncOp", True)
        else:
            own = "".join(f"{word}, " for word in takes.split())
            raise InvalidArgument(
                f"{function}: asked for tensors, then torch's options or {own}timeout, found"
                f" {each!r:.80}"
            )
    return Asked(op, root, timeout, is_async)


def flat(tensors: Any) -> Any:
    """The tensors of torch's list of one list, or the list itself."""
    return tensors if not len(tensors) or isinstance(tensors[0], Tensor) else tensors[0]


def also_named(**names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lets the call's arguments be given by torch's names too: each torch name and ours."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def named(self: Any, *args: Any, **given: Any) -> Any:
            if not given:
                return call(self, *args)
            ours = [names.get(name, name) for name in given]
            if len(set(ours)) < len(ours):
                raise TypeError(f"{call.__name__}: arguments of two forms: {', '.join(given)}")
            return call(self, *args, **dict(zip(ours, given.values(), strict=True)))

        return named

    return wrap
