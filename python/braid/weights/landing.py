"""Memory beside what is served: there versions land with two buffers, and are copied over."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from braid.arrays import Array
from braid.weights.holdings import Parameter, box_of, dtype_of, extent


def beside(parameters: Sequence[Parameter]) -> list[Parameter]:
    """The same parameters in other memory: of the same strides, on the same device, and what spans
    the same memory does so there, too. What lies there first is anything.
    """
    known: dict[tuple[tuple[int, int, int | None], str], Array] = {}
    made = []
    for parameter in parameters:
        array = parameter.array
        key = extent(array), dtype_of(array)
        if key not in known:
            known[key] = _memory_like(array)
        made.append(replace(parameter, array=_formed_like(array, known[key])))
    return made


def _memory_like(array: Array) -> Array:
    """As much memory as an array spans."""
    nbytes = extent(array)[1]
    if hasattr(array, "data_ptr"):
        memory: Array = array.new_empty(nbytes // int(array.element_size()))
        return memory
    return np.empty(nbytes, np.uint8)


def _formed_like(array: Array, memory: Array) -> Array:
    """An array of the same shape, type and strides in that memory."""
    if hasattr(array, "data_ptr"):
        tensor: Array = memory.as_strided(array.shape, array.stride())
        return tensor
    return np.ndarray(array.shape, array.dtype, memory, strides=array.strides)


def copy_over(served: Sequence[Parameter], landed: Sequence[Parameter]) -> None:
    """Every box, each with its strides on both sides; what lies between boxes stays as it is.
    When it returns it is there, for streams of a GPU, too.
    """
    gpus = set[int]()
    for there, here in zip(served, landed, strict=True):
        _, nbytes, gpu = extent(there.array)
        if not nbytes:
            continue
        if hasattr(there.array, "data_ptr"):
            _copy_tensor(there, here)
        else:
            for to, of in zip(there.pieces(0), here.pieces(0), strict=True):
                np.copyto(box_of(there.array, to, writeable=True), box_of(here.array, of))
        if gpu is not None:
            gpus.add(gpu)
    if gpus:
        import torch

        for gpu in gpus:
            torch.cuda.current_stream(gpu).synchronize()


def _copy_tensor(there: Parameter, here: Parameter) -> None:
    """Also to a model's own parameters, which ask for gradients, and to tensors that were made in
    inference mode, which can be changed in that mode alone.
    """
    import torch

    with torch.inference_mode():
        for to, of in zip(there.pieces(0), here.pieces(0), strict=True):
            box_of(there.array, to).copy_(box_of(here.array, of))
