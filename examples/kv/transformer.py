"""A small transformer in NumPy with a paged KV cache: what the examples serve.

Weights are made from a seed, with a deviation that makes every token depend on the whole cache. A
rank of `tp` has its share of the heads and of the MLP; what ranks add up is done by `add_up`.
"""

from dataclasses import dataclass, field

import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, VOCAB, PAGE = 4, 64, 8, 4, 8, 199, 16


def norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def rotated(x, places):
    """x [heads, tokens, HEAD], turned by each token's place."""
    angles = places[:, None] * (100.0 ** -np.arange(0, 1, 2 / HEAD))[None]
    a, b, cos, sin = x[..., ::2], x[..., 1::2], np.cos(angles), np.sin(angles)
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


@dataclass
class Transformer:
    rank: int = 0
    tp: int = 1
    add_up: object = staticmethod(lambda x: x)
    pages: int = 64
    layers: list = field(default_factory=list)

    def __post_init__(self):
        rng = np.random.default_rng(5)
        normal = lambda *shape: rng.normal(0, 1.3 / np.sqrt(shape[0]), shape)  # noqa: E731
        self.embed = rng.normal(0, 1, (VOCAB, WIDTH))
        share = lambda x, axis: np.split(x, self.tp, axis)[self.rank]  # noqa: E731
        for _ in range(LAYERS):
            q, k, v = normal(WIDTH, HEADS * HEAD), *normal(2, WIDTH, KV_HEADS * HEAD)
            out, up, down = normal(HEADS * HEAD, WIDTH), normal(WIDTH, 128), normal(128, WIDTH)
            self.layers.append(
                [share(w, 1) for w in (q, k, v)] + [share(out, 0), share(up, 1), share(down, 0)]
            )
        kv = KV_HEADS // self.tp
        # Heads before tokens; keys and values of a token side by side.
        self.cache = np.zeros((LAYERS, self.pages, kv, PAGE, 2 * HEAD))

    def forward(self, tokens, before, table, layer_done=lambda: None):
        """tokens [n] that follow `before` others, whose pages are in `table`. The next token."""
        places = np.arange(before, before + len(tokens))
        x = self.embed[np.asarray(tokens)]
        for number, (q, k, v, out, up, down) in enumerate(self.layers):
            h = norm(x)
            heads = [(h @ w).reshape(len(tokens), -1, HEAD).swapaxes(0, 1) for w in (q, k, v)]
            pages = self.cache[number]
            at = np.asarray(table)[places // PAGE], slice(None), places % PAGE
            both = np.concatenate([rotated(heads[1], places), heads[2]], -1)
            pages[at] = both.swapaxes(0, 1)
            layer_done()  # this layer's keys and values of these tokens are in their pages
            held = pages[np.asarray(table)].swapaxes(0, 1).reshape(pages.shape[1], -1, 2 * HEAD)
            held = held[:, : before + len(tokens)]
            x = x + self.add_up(self.attend(rotated(heads[0], places), held, places) @ out)
            x = x + self.add_up(np.maximum(norm(x) @ up, 0) @ down)
        return int((norm(x[-1]) @ self.embed.T).argmax())

    def attend(self, q, held, places):
        keys, values = (np.repeat(held[..., part], HEADS // KV_HEADS, 0)
                        for part in (slice(HEAD), slice(HEAD, None)))  # fmt: skip
        scores = q @ keys.swapaxes(1, 2) / np.sqrt(HEAD)
        scores[:, np.arange(keys.shape[1])[None] > places[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ values
        return mixed.swapaxes(0, 1).reshape(len(places), -1)

    def decode(self, first, before, table, count):
        """`count` tokens, of which `first` is the first; `before` tokens are in the cache."""
        out = [first]
        while len(out) < count:
            out.append(self.forward([out[-1]], before + len(out) - 1, table))
        return out


def prompts(count):
    """Of mixed lengths, each another."""
    rng = np.random.default_rng(11)
    return [rng.integers(0, VOCAB, n).tolist() for n in rng.integers(3, 150, count)]


def alone(prompt, count):
    """What one process says that does both."""
    model, table = Transformer(), list(range(-(-(len(prompt) + count) // PAGE)))
    return model.decode(model.forward(prompt, 0, table), len(prompt), table, count)
