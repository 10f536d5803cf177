"""Arguments that are something else altogether are refused by name."""

from torch import Tensor

from braid.comm import Comm
from braid.errors import InvalidArgument


def refuse(call: str, argument: str, expected: str, value: object) -> InvalidArgument:
    found = "None" if value is None else type(value).__name__
    return InvalidArgument(f"{call}: argument {argument}: asked for {expected}, found {found}")


def check_tensor(call: str, argument: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise refuse(call, argument, "a torch.Tensor", value)


def check_comm(call: str, value: object) -> None:
    if not isinstance(value, Comm):
        raise refuse(call, "comm", "a braid.Comm", value)
