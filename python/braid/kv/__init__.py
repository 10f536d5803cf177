"""KV caches between servers: a prefiller computes a request's pages, a decoder goes on with them.

    # the prefiller, one for each rank
    cache = PagedCache(engine, layers, layout)
    prefiller = Prefiller(engine, cache)
    handover = prefiller.begin("r1", pages, tokens)
    prefiller.declare([Part("r1", tokens)])            # a forward pass
    ...; prefiller.layer_done()                        # behind each of its layers
    handover.wait()                                    # the pages may be used again

    # the decoder, one for each rank
    cache = PagedCache(engine, layers, layout)
    decoder = Decoder(engine, cache)
    there = decoder.connect(addresses, timeout=10)     # all ranks of a prefiller
    load = decoder.want("r1", there, free_pages, tokens)
    load.wait()                                        # all pages are here

Pages go layer by layer while the next layer is computed, over whatever the engine has. A handover
or a load that has ended, well or not, is over: nothing is read or lands in its pages any more.
docs/kv.md tells the life of a page.
"""

from braid.kv.cache import LayerMemory, PagedCache
from braid.kv.counters import Counters
from braid.kv.decoder import Decoder
from braid.kv.handover import Handover
from braid.kv.layout import Layout
from braid.kv.load import Load, Prefill
from braid.kv.prefiller import Prefiller
from braid.kv.progress import Part

__all__ = [
    "Counters",
    "Decoder",
    "Handover",
    "LayerMemory",
    "Layout",
    "Load",
    "PagedCache",
    "Part",
    "Prefill",
    "Prefiller",
]
