"""Begins the reads of loads that are pulled, as many as the engine has room for."""

from functools import partial

import numpy as np

from braid.engine import Engine
from braid.errors import Exhausted
from braid.kv.cache import PagedCache
from braid.kv.counters import Counters
from braid.kv.flying import LONGEST_S
from braid.kv.layout import Slice
from braid.kv.load import Load, Source
from braid.kv.places import Move, both, check_pages, moves, regions_of


class Reads:
    """The reads of one decoder. Whoever calls holds its lock."""

    def __init__(self, engine: Engine, cache: PagedCache, counters: Counters) -> None:
        self._engine = engine
        self._cache = cache
        self._counters = counters

    def plan(self, load: Load, source: Source, part: Slice) -> None:
        """Appends the reads of one slice to those that have not begun. InvalidArgument: a page that
        the source does not have.
        """
        assert source.layout is not None
        assert load.remote_pages is not None
        here, there = self._cache.layout.first_layer, source.layout.first_layer
        places = both(part.layers, self._cache.places, here, source.places, there)
        check_pages(load.remote_pages, source.pages, f"{load.what}: at '{source.name}'")
        load.to_read.extend(
            partial(self._begin_one, load, source, part, move)
            for move in moves(places, load.pages, load.remote_pages)
        )

    def begin(self, load: Load) -> None:
        """Begins the reads that can begin. Where the engine has no room the others begin when a
        read of this load has ended, or at the next tick. Raises what is wrong with a read.
        """
        while load.to_read:
            try:
                load.to_read[0]()
            except Exhausted:
                return
            load.to_read.popleft()

    def _begin_one(self, load: Load, source: Source, part: Slice, move: Move) -> None:
        head_bytes = self._cache.layout.head_bytes
        ticket = self._engine.read_pages(
            regions_of(move.ours, self._cache.regions),
            regions_of(move.theirs, source.regions),
            part.heads * head_bytes,
            move.ours.ids,
            move.theirs.ids,
            dst_stride=move.ours.stride,
            src_stride=move.theirs.stride,
            dst_offset=move.ours.offsets + np.uint64(part.target_head * head_bytes),
            src_offset=move.theirs.offsets + np.uint64(part.source_head * head_bytes),
            timeout=LONGEST_S,
        )
        load.reads.add(ticket)
        self._counters.add("pages", move.pages)
        self._counters.add("bytes", move.pages * part.heads * head_bytes)
