"""Tokens for tests of braid.moe, made by every rank for all of them; and NumPy and torch alike."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np


def libraries():
    """NumPy, and torch where it is installed."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        return ["numpy"]
    return ["numpy", "torch"]


class Library:
    def __init__(self, name):
        self.name = name

    def of(self, array):
        if self.name == "numpy":
            return array
        import torch

        return torch.from_numpy(array)

    def bf16(self, array):
        if self.name == "numpy":
            return array.astype(ml_dtypes.bfloat16)
        import torch

        return torch.from_numpy(array).to(torch.bfloat16)

    def numpy(self, array):
        """fp8 and bf16 as NumPy has them."""
        if isinstance(array, np.ndarray):
            return array
        import torch

        if array.dtype == torch.float8_e4m3fn:
            return array.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
        return (array.float() if array.dtype == torch.bfloat16 else array).numpy()


def _wide(array):
    if hasattr(array, "new_empty"):
        array = Library("torch").numpy(array)
    elif isinstance(array, list) and array and hasattr(array[0], "new_empty"):
        array = np.stack([Library("torch").numpy(each) for each in array])
    return np.asarray(array).astype(np.float64)


def same(found, wanted):
    found, wanted = _wide(found), _wide(wanted)
    if wanted.size == 0 and found.size == 0:
        return
    np.testing.assert_array_equal(found, wanted)


@dataclass
class Tokens:
    x: np.ndarray  # small whole numbers, exact in bf16
    ids: np.ndarray
    weights: np.ndarray
    per_expert: np.ndarray
    is_in: np.ndarray


def make(seed, rank, size, hidden, topk=4, experts_per_rank=4):
    """Seed 0: no tokens on rank 0. 1: ids of -1. 2: one expert for all. Else: random."""
    random = np.random.default_rng(1000 * seed + rank)
    tokens = 0 if seed == 0 and rank == 0 else 5 + (7 * rank + seed) % 11
    experts = experts_per_rank * size
    x = np.arange(tokens * hidden).reshape(tokens, hidden) % 23 + 3 * rank - 11.0
    ids = np.stack([random.permutation(experts)[:topk] for _ in range(tokens)] or [[0] * topk])[
        :tokens
    ].astype(np.int64)
    if seed == 1:
        ids[random.random(ids.shape) < 0.3] = -1
    if seed == 2:
        ids[:, 0], ids[:, 1:] = experts - 1, -1
    weights = np.tile(np.float32([0.5, 0.25, 0.125, 0.125]), (tokens, 1))
    if seed == 1:  # 1, 2 or 4 in all, whatever is left of it
        weights = np.full((tokens, topk), 0.25, np.float32)
    per_expert = np.bincount(ids[ids >= 0], minlength=experts)
    is_in = np.zeros((tokens, size), bool)
    for t, k in np.argwhere(ids >= 0):
        is_in[t, ids[t, k] // experts_per_rank] = True
    return Tokens(x.astype(np.float32), ids, weights, per_expert, is_in)


def rows_by_source(every, rank):
    return [(s, t) for s, tokens in enumerate(every) for t in np.flatnonzero(tokens.is_in[:, rank])]


def rows_by_expert(every, rank, expert, experts_per_rank=4):
    wanted = rank * experts_per_rank + expert
    return [
        (s, t, k) for s, tokens in enumerate(every) for t, k in np.argwhere(tokens.ids == wanted)
    ]
