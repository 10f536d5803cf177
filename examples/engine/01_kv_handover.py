"""One process computes the pages of a KV cache, another one decodes from them: the pages go from
memory to memory, into the slots that the decoder has free, and it knows when all are there.

Run: python examples/engine/01_kv_handover.py
"""

import multiprocessing as mp

import numpy as np

import braid

PAGE_BYTES, NUM_PAGES, REQUEST = 64 << 10, 256, 7


def decode(orders, says):
    cache = np.zeros((NUM_PAGES, PAGE_BYTES), np.uint8)
    with braid.Engine("decode", nics="none") as engine, engine.register(cache) as pages:
        free = np.random.default_rng(1).permutation(NUM_PAGES)[:100]
        orders.put((pages.descriptor, free))  # opaque bytes, and where the pages may go
        engine.expect(REQUEST, count=len(free)).wait(timeout=60)  # each page counts one
        says.put(cache[free].sum(axis=1, dtype=np.int64))


def prefill(orders, says):
    cache = np.random.default_rng(0).integers(0, 256, (NUM_PAGES, PAGE_BYTES), np.uint8)
    with braid.Engine("prefill", nics="none") as engine, engine.register(cache) as pages:
        theirs, free = orders.get(timeout=60)
        mine = np.arange(len(free))
        engine.write_pages(pages, theirs, PAGE_BYTES, mine, free, imm=REQUEST).wait()
        same = np.array_equal(says.get(timeout=60), cache[mine].sum(axis=1, dtype=np.int64))
        moved = engine.stats()["bytes_written"]
        print(f"{len(free)} pages, {moved} bytes, in the decoder's cache: the same is {same}")


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    orders, says = spawn.Queue(), spawn.Queue()
    decoder = spawn.Process(target=decode, args=(orders, says))
    decoder.start()
    prefill(orders, says)
    decoder.join(60)
