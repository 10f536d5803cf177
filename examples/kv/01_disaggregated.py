"""A small transformer served by two processes: one computes the prompts' KV caches, in chunks, the
other one decodes from them. Pages go over layer by layer while the next layer is computed; the
tokens are those that one process says alone.

Run: python examples/kv/01_disaggregated.py
"""

import multiprocessing as mp

import numpy as np
import transformer as t

import braid
from braid import kv

LAYOUT = kv.Layout("example", "float64", t.LAYERS, t.KV_HEADS, t.PAGE, 2 * t.HEAD * 8, tail_bytes=4)
REQUESTS, TOKENS, CHUNK = 12, 8, 40


def pick(seed, count):
    """Pages as a server has them free: anywhere."""
    return np.random.default_rng(abs(seed) * 2 + (seed < 0)).permutation(64)[:count].tolist()


def prefill(says):
    model = t.Transformer()
    with (
        braid.Engine("prefill", nics="none") as engine,
        kv.PagedCache(engine, list(model.cache), LAYOUT) as cache,
        kv.Prefiller(engine, cache) as prefiller,
    ):
        says.put(engine.address)
        for number, prompt in enumerate(t.prompts(REQUESTS)):
            table = pick(number, LAYOUT.pages_of(len(prompt)))
            handover = prefiller.begin(str(number), table, len(prompt))
            for begin in range(0, len(prompt), CHUNK):
                chunk = prompt[begin : begin + CHUNK]
                prefiller.declare([kv.Part(str(number), begin + len(chunk))])
                first = model.forward(chunk, begin, table, prefiller.layer_done)
            prefiller.tail(str(number), first.to_bytes(4, "little"))
            handover.wait(60)  # the pages may be used again
            model.cache[:, table] = float("nan")  # whoever reads them later will notice


def decode(says):
    model = t.Transformer()
    with (
        braid.Engine("decode", nics="none") as engine,
        kv.PagedCache(engine, list(model.cache), LAYOUT) as cache,
        kv.Decoder(engine, cache) as decoder,
    ):
        there = decoder.connect([says.get(timeout=60)], timeout=60)
        same = 0
        for number, prompt in enumerate(t.prompts(REQUESTS)):
            count = LAYOUT.pages_of(len(prompt) + TOKENS)
            table = pick(-number, count)
            load = decoder.want(
                str(number), there, table[: LAYOUT.pages_of(len(prompt))], len(prompt)
            )
            load.wait(60)
            first = int.from_bytes(load.tail, "little")
            same += model.decode(first, len(prompt), table, TOKENS) == t.alone(prompt, TOKENS)
        moved = decoder.counters["bytes"]
        print(f"{same} of {REQUESTS} requests: the tokens of one process; {moved} bytes of pages")


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    says = spawn.Queue()
    prefiller = spawn.Process(target=prefill, args=(says,))
    prefiller.start()
    decode(says)
    prefiller.join(60)
