"""What a call is about, checked: everything one rank can know alone."""

from dataclasses import dataclass
from enum import IntEnum

import torch

from braid.errors import InvalidArgument

KERNEL_DTYPES = (torch.bfloat16, torch.float16)
_TILE, _MOST_TILES = 128, 65_536  # src/overlap/workspace.h
_UNIT = 8  # columns and depth, so that rows begin at multiples of 16 bytes


class Op(IntEnum):
    """The numbers of overlap::Call in src/overlap/calls.h."""

    AG_GEMM = 0
    GEMM_RS = 1
    GEMM_AR = 2

    __hash__ = int.__hash__  # Enum's own is written in Python, and every call looks one up


NAMES = {Op.AG_GEMM: "ag_gemm", Op.GEMM_RS: "gemm_rs", Op.GEMM_AR: "gemm_ar"}


@dataclass(frozen=True)
class Shape:
    """Of one call, alike on all ranks but for what ranks cannot know of each other."""

    op: Op
    rows: int
    """Of x as given: a shard of an all-gather, else all."""
    columns: int
    depth: int
    is_kn: bool
    dtype: torch.dtype
    size: int

    @property
    def shard_rows(self) -> int:
        return self.rows if self.op is Op.AG_GEMM else self.rows // self.size

    @property
    def result_rows(self) -> int:
        if self.op is Op.AG_GEMM:
            return self.rows * self.size
        return self.shard_rows if self.op is Op.GEMM_RS else self.rows


def shape_of(
    op: Op, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, layout: str, size: int
) -> Shape:
    """Raises InvalidArgument that names what does not fit."""
    name = NAMES[op]
    if not isinstance(layout, str) or layout not in ("nk", "kn"):
        raise InvalidArgument(f"{name}: layout {layout!r:.80}; 'nk' or 'kn'")
    if x.dim() != 2 or w.dim() != 2:
        raise InvalidArgument(
            f"{name}: x of {x.dim()} and w of {w.dim()} dimensions; both have two"
        )
    columns, depth = w.shape if layout == "nk" else (w.shape[1], w.shape[0])
    if x.shape[1] != depth:
        raise InvalidArgument(
            f"{name}: x has {x.shape[1]} columns, w as '{layout}' a depth of {depth}"
        )
    if x.dtype != w.dtype:
        raise InvalidArgument(f"{name}: x is {x.dtype}, w {w.dtype}; all tensors have one dtype")
    if bias is not None and bias.dtype != x.dtype:
        raise InvalidArgument(
            f"{name}: x is {x.dtype}, bias {bias.dtype}; all tensors have one dtype"
        )
    if not x.dtype.is_floating_point or x.dtype.itemsize < 2:
        raise InvalidArgument(f"{name}: {x.dtype}; float64, float32, bfloat16 or float16")
    if x.device != w.device:
        raise InvalidArgument(f"{name}: x on {x.device}, w on {w.device}; one device")
    if bias is not None and bias.device != x.device:
        raise InvalidArgument(f"{name}: x on {x.device}, bias on {bias.device}; one device")
    if bias is not None and tuple(bias.shape) != (columns,):
        raise InvalidArgument(f"{name}: bias of shape {tuple(bias.shape)}; ({columns},)")
    if op is Op.GEMM_RS and x.shape[0] % size:
        raise InvalidArgument(f"{name}: {x.shape[0]} rows do not divide among {size} ranks")
    if not x.shape[0] or not columns or not depth:
        raise InvalidArgument(f"{name}: x of {tuple(x.shape)}, {columns} columns: nothing to do")
    return Shape(op, x.shape[0], columns, depth, layout == "kn", x.dtype, size)


def _tiles(shape: Shape) -> int:
    """Of the smallest form."""
    return -(-shape.shard_rows // _TILE) * -(-shape.columns // _TILE)


def why_sequential(shape: Shape, *tensors: torch.Tensor | None) -> str:
    """Why no kernel takes the call; empty when one does. Alike on all ranks, or they would take
    different ways: so nothing of where this rank's elements lie is a reason.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    if not all(tensor.is_cuda for tensor in given):
        return "not on a GPU"
    if torch.cuda.get_device_capability(given[0].device) != (9, 0):
        return "the GPU is not of compute capability 9.0"
    if shape.dtype not in KERNEL_DTYPES:
        return f"{shape.dtype}"
    if shape.columns % _UNIT or shape.depth % _UNIT:
        return f"{shape.columns} columns, depth {shape.depth}: no multiples of {_UNIT}"
    if not 1 < shape.size <= 8:
        return f"{shape.size} ranks"
    if shape.op is not Op.AG_GEMM and _tiles(shape) > _MOST_TILES:
        return f"{_tiles(shape)} tiles of a shard's result: flags have room for {_MOST_TILES}"
    return ""
