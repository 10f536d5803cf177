"""What a parallel layer is made of, checked before it is: InvalidArgument names what is wrong."""

import operator
from typing import Any

import torch

from braid.comm import Comm
from braid.errors import InvalidArgument
from braid.overlap.kinds import check_comm, refuse

_MOST_FEATURES = 2**31 - 1


def features(layer: str, argument: str, value: Any) -> int:
    """A whole number from 1 on."""
    try:
        number = operator.index(value)
    except Exception:  # whatever an object says that is no number
        raise refuse(layer, argument, "a whole number", value) from None
    if not 1 <= number <= _MOST_FEATURES:
        raise InvalidArgument(
            f"{layer}: argument {argument}: asked for 1 to {_MOST_FEATURES}, found {number}"
        )
    return number


def part(layer: str, argument: str, value: Any, comm: Comm) -> int:
    """Of so many features, this rank's."""
    check_comm(layer, comm)
    number = features(layer, argument, value)
    if number % comm.size:
        raise InvalidArgument(f"{layer}: {argument} {number} do not divide among {comm.size} ranks")
    return number // comm.size


def flag(layer: str, argument: str, value: Any) -> bool:
    """What is true or false; an array of several is neither."""
    try:
        return bool(value)
    except Exception:
        raise refuse(layer, argument, "True or False", value) from None


def check_place(layer: str, device: Any, dtype: Any) -> None:
    """Of weights; both as torch's own layers take them."""
    if device is not None and not isinstance(device, str | int | torch.device):
        raise refuse(layer, "device", "a torch.device or its name", device)
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        raise refuse(layer, "dtype", "a torch.dtype", dtype)
    if not dtype.is_floating_point or dtype.itemsize < 2:
        raise InvalidArgument(
            f"{layer}: argument dtype: asked for float64, float32, bfloat16 or float16,"
            f" found {dtype}"
        )
