"""Who chooses which experts: made from a seed, the same on every rank that asks."""

from dataclasses import dataclass

import numpy as np

from braid.errors import InvalidArgument


@dataclass(frozen=True)
class Shape:
    """Of a model: experts, choices of a token, channels."""

    name: str
    num_experts: int
    num_topk: int
    hidden: int
    num_groups: int = 1
    """Of which a token takes half, where its router limits it."""


SHAPES = {
    "deepseek-v3": Shape("deepseek-v3", 256, 8, 7168, 8),
    "kimi-k2": Shape("kimi-k2", 384, 8, 7168),
    "qwen3-235b": Shape("qwen3-235b", 128, 8, 4096),
    "tiny": Shape("tiny", 16, 4, 256, 4),
}
ROUTINGS = ("uniform", "zipf", "groups")


def ids_of(shape: Shape, routing: str, tokens: int, rank: int, seed: int = 7) -> np.ndarray:
    """int64 [T, K], different experts of one token."""
    random = np.random.default_rng((seed, rank, tokens))
    scores = random.gumbel(size=(tokens, shape.num_experts))
    if routing == "zipf":  # without replacement, by weights 1 / (e + 1)
        scores -= np.log(np.arange(1, shape.num_experts + 1))
    elif routing == "groups":
        if shape.num_groups < 2:
            raise InvalidArgument(f"routing groups: the router of {shape.name} has none")
        taken = np.argsort(random.random((tokens, shape.num_groups)))[:, : shape.num_groups // 2]
        of_expert = np.arange(shape.num_experts) // (shape.num_experts // shape.num_groups)
        scores[~(of_expert[None, :, None] == taken[:, None, :]).any(2)] = -np.inf
    elif routing != "uniform":
        raise InvalidArgument(f"routing: asked for {', '.join(ROUTINGS)}, found {routing}")
    return np.argsort(-scores, axis=1, kind="stable")[:, : shape.num_topk].astype(np.int64)


def copies_to(ids: np.ndarray, shape: Shape, size: int, rank: int) -> int:
    """Tokens that have an expert on `rank`, each of which goes there once: the formula of a link's
    bytes, in rows.
    """
    return int((ids // (shape.num_experts // size) == rank).any(1).sum())
