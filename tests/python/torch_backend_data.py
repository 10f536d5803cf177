"""Tensors whose elements say where they belong."""

import torch
import torch.distributed as dist


def numbers(count: int, dtype: torch.dtype, rank: int, salt: int = 0) -> torch.Tensor:
    """Small whole numbers that depend on position and rank: sums over few ranks are exact in every
    type.
    """
    values = (torch.arange(count) * 5 + 3 * rank + 7 * salt) % 13
    if dtype == torch.bool:
        return values % 3 == 0
    if dtype.is_complex:
        return torch.complex(values.float(), (values + rank).float()).to(dtype)
    return values.to(dtype)


def mine(count: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """This rank's numbers."""
    return numbers(count, dtype, dist.get_rank(), salt)


def all_ranks(count: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> list[torch.Tensor]:
    """Every rank's numbers, in rank order."""
    return [numbers(count, dtype, rank, salt) for rank in range(dist.get_world_size())]


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal to the bit, with shape and type."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert torch.equal(got, want), f"got {got}, want {want}"
