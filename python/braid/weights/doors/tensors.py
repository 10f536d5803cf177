"""Bytes as torch's tensors."""

from typing import Any


def tensor_of(dtype: str, shape: tuple[int, ...], data: Any) -> Any:
    """A tensor over the bytes, of a type by its name."""
    import torch

    kind = getattr(torch, dtype)
    if data.size == 0:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(data).view(kind).reshape(shape)
