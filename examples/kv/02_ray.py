"""The two servers of 01_disaggregated.py as actors of Ray, which may be on different nodes. Through
Ray go an address, prompts and tokens; pages go from one process's memory into the other's.

Run: python examples/kv/02_ray.py     (pip install ray)
"""

import importlib
import secrets

import ray
import transformer as t

import braid
from braid import kv

one = importlib.import_module("01_disaggregated")


@ray.remote
class Prefill:
    def __init__(self):
        self.model = t.Transformer()
        self.engine = braid.Engine("prefill")
        self.cache = kv.PagedCache(self.engine, list(self.model.cache), one.LAYOUT)
        self.prefiller = kv.Prefiller(self.engine, self.cache)

    def address(self):
        return self.engine.address

    def compute(self, number, prompt):
        """Returns when the decoder has the pages, which may then be used again."""
        table = one.pick(number, one.LAYOUT.pages_of(len(prompt)))
        handover = self.prefiller.begin(str(number), table, len(prompt))
        for begin in range(0, len(prompt), one.CHUNK):
            chunk = prompt[begin : begin + one.CHUNK]
            self.prefiller.declare([kv.Part(str(number), begin + len(chunk))])
            first = self.model.forward(chunk, begin, table, self.prefiller.layer_done)
        self.prefiller.tail(str(number), first.to_bytes(4, "little"))
        handover.wait(60)
        self.model.cache[:, table] = float("nan")


@ray.remote
class Decode:
    def __init__(self, prefiller):
        self.model = t.Transformer()
        self.engine = braid.Engine("decode")
        self.cache = kv.PagedCache(self.engine, list(self.model.cache), one.LAYOUT)
        self.decoder = kv.Decoder(self.engine, self.cache)
        self.there = self.decoder.connect([prefiller], timeout=60)

    def tokens(self, number, prompt):
        table = one.pick(-number, one.LAYOUT.pages_of(len(prompt) + one.TOKENS))
        pages = table[: one.LAYOUT.pages_of(len(prompt))]
        load = self.decoder.want(str(number), self.there, pages, len(prompt))
        load.wait(60)
        first = int.from_bytes(load.tail, "little")
        return self.model.decode(first, len(prompt), table, one.TOKENS)

    def moved(self):
        return self.decoder.counters["bytes"]


if __name__ == "__main__":
    # Whoever has the token belongs to the job; on several nodes nothing else says so.
    token = {"BRAID_JOB_TOKEN": secrets.token_hex(16)}
    ray.init(runtime_env={"env_vars": token}, log_to_driver=False)
    prefill = Prefill.remote()
    decode = Decode.remote(ray.get(prefill.address.remote()))
    ray.get(decode.moved.remote())  # it is there: nobody holds pages for one that starts
    same = 0
    for number, prompt in enumerate(t.prompts(one.REQUESTS)):
        _, tokens = ray.get(
            [prefill.compute.remote(number, prompt), decode.tokens.remote(number, prompt)]
        )
        same += tokens == t.alone(prompt, one.TOKENS)
    moved = ray.get(decode.moved.remote())
    print(f"{same} of {one.REQUESTS} requests: the tokens of one process; {moved} bytes of pages")
