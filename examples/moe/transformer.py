"""A small transformer with a mixture of experts, its experts spread over the ranks.

braid run -n 4 examples/moe/transformer.py

Every rank has prompts of its own and all weights but the experts'. Prompts are read with normal
dispatch and combine, tokens are made with the low-latency ones. Rank 0 makes the tokens of all
ranks once more, alone, and compares. Weights are random: nothing is downloaded.
"""

import sys

import numpy as np

import braid
from braid.moe import Buffer

LAYERS, HIDDEN, HEADS, INNER = 2, 64, 4, 48
EXPERTS, TOPK, VOCABULARY = 12, 2, 97
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 3, 9, 8


class Weights:
    def __init__(self):
        random = np.random.default_rng(7)

        def draw(*shape):
            return (random.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

        self.embedding, self.head = draw(VOCABULARY, HIDDEN) * 8, draw(HIDDEN, VOCABULARY)
        self.qkv, self.out = draw(LAYERS, 3, HIDDEN, HIDDEN), draw(LAYERS, HIDDEN, HIDDEN)
        self.router = draw(LAYERS, HIDDEN, EXPERTS)
        self.up = draw(LAYERS, EXPERTS, HIDDEN, INNER)
        self.down = draw(LAYERS, EXPERTS, INNER, HIDDEN)


def norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def by_row(rows, matrix):
    """Row by row, so that a row's bits do not depend on how many there are."""
    return np.stack([row @ matrix for row in rows]) if len(rows) else rows[:, :1] @ matrix[:1]


def attend(w, layer, x, past):
    """The last rows of x see all of `past`, which grows by them."""
    q, k, v = (by_row(norm(x), w.qkv[layer, i]).reshape(len(x), HEADS, -1) for i in range(3))
    past[0], past[1] = np.concatenate([past[0], k]), np.concatenate([past[1], v])
    out = np.empty_like(x)
    for i in range(len(x)):
        seen = len(past[0]) - len(x) + i + 1
        scores = np.einsum("hd,thd->ht", q[i], past[0][:seen]) / np.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        weighted = np.einsum("ht,thd->hd", scores / scores.sum(-1, keepdims=True), past[1][:seen])
        out[i] = weighted.reshape(-1) @ w.out[layer]
    return x + out


def route(w, layer, x):
    scores = by_row(x, w.router[layer])
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :TOPK].astype(np.int64)
    chosen = np.exp(np.take_along_axis(scores, ids, 1))
    return ids, (chosen / chosen.sum(1, keepdims=True)).astype(np.float32)


def expert(w, layer, number, rows):
    if number >= EXPERTS:  # fills up the last rank; nobody chooses it
        return rows
    return by_row(np.maximum(by_row(rows, w.up[layer, number]), 0), w.down[layer, number])


class Alone:
    """All experts here: the same sums, in the order of the choices."""

    def moe(self, w, layer, x, _is_prompt):
        ids, weights = route(w, layer, x)
        out = np.zeros_like(x)
        for t in range(len(x)):
            for k in range(TOPK):
                out[t] += weights[t, k] * expert(w, layer, ids[t, k], x[t : t + 1])[0]
        return out


class Spread:
    """Experts over the ranks of a comm."""

    def __init__(self, comm):
        self.local = -(-EXPERTS // comm.size)
        self.num_experts, self.first = self.local * comm.size, comm.rank * self.local
        self.most = PROMPTS
        size = Buffer.get_low_latency_rdma_size_hint(self.most, 2 * HIDDEN, comm.size, 16)
        self.buffer = Buffer(comm, 1 << 20, size, low_latency_mode=True)

    def moe(self, w, layer, x, is_prompt):
        ids, weights = route(w, layer, x)
        return (self.normal if is_prompt else self.fast)(w, layer, x, ids, weights)

    def normal(self, w, layer, x, ids, weights):
        b = self.buffer
        per_rank, _, per_expert, is_in, _ = b.get_dispatch_layout(ids, self.num_experts)
        # Weights go along; a rank sums what its experts say before it sends it back.
        rows, local, w_local, _, handle, _ = b.dispatch(
            x, None, per_rank, None, is_in, per_expert, ids, weights
        )
        parts = np.zeros((len(rows), TOPK, HIDDEN), np.float32)
        for i, k in np.argwhere(local >= 0):
            y = expert(w, layer, self.first + local[i, k], rows[i : i + 1])[0]
            parts[i, k] = w_local[i, k] * y
        summed = parts[:, 0].copy()
        for k in range(1, TOPK):
            summed += parts[:, k]
        return b.combine(summed, handle)[0]

    def fast(self, w, layer, x, ids, weights):
        rows, count, handle, _, hook = self.buffer.low_latency_dispatch(
            x, ids, self.most, self.num_experts, use_fp8=False, return_recv_hook=True
        )
        hook()  # between the halves a rank may compute
        for e in range(self.local):
            rows[e, : count[e]] = expert(w, layer, self.first + e, rows[e, : count[e]])
        return self.buffer.low_latency_combine(rows, ids, weights, handle)[0]


def generate(w, mixture, prompts):
    """New tokens of each prompt, greedily."""
    empty = np.empty((0, HEADS, HIDDEN // HEADS), np.float32)
    past = [[[empty, empty] for _ in range(LAYERS)] for _ in prompts]
    tokens = [list(prompt) for prompt in prompts]
    fed = list(prompts)
    for step in range(NEW_TOKENS):
        x = [w.embedding[ids] for ids in fed]
        for layer in range(LAYERS):
            x = [attend(w, layer, rows, cache[layer]) for rows, cache in zip(x, past, strict=True)]
            flat = np.concatenate(x)
            flat = flat + mixture.moe(w, layer, norm(flat), step == 0)
            x = np.split(flat, np.cumsum([len(rows) for rows in x])[:-1])
        fed = [[int(np.argmax(norm(rows[-1]) @ w.head))] for rows in x]
        for made, new in zip(tokens, fed, strict=True):
            made += new
    return [made[-NEW_TOKENS:] for made in tokens]


def prompts_of(rank):
    random = np.random.default_rng(100 + rank)
    return [list(random.integers(0, VOCABULARY, PROMPT_TOKENS + rank % 2)) for _ in range(PROMPTS)]


def main():
    with braid.init() as comm:
        w = Weights()
        mixture = Spread(comm)
        made = comm.all_gather_object(generate(w, mixture, prompts_of(comm.rank)))
        mixture.buffer.destroy()
        if comm.rank == 0:
            alone = [generate(w, Alone(), prompts_of(rank)) for rank in range(comm.size)]
            print(f"{EXPERTS} experts over {comm.size} ranks, {comm.size * PROMPTS} prompts")
            print(f"first prompt goes on: {made[0][0]}")
            print(f"tokens equal to those of one process: {'yes' if made == alone else 'NO'}")
            return 0 if made == alone else 1
        return 0


if __name__ == "__main__":
    sys.exit(main())
