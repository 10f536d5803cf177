"""Calls of braid.moe for tests of what is refused: right but for what a test changes."""

import re

import numpy as np
import pytest
from moe_data import Library, make, rows_by_source, same

import braid
from braid.moe import Buffer

H, M = 256, 24


def made(comm, **options):
    size = Buffer.get_low_latency_rdma_size_hint(M, H, comm.size, 4 * comm.size)
    return Buffer(comm, 1 << 20, size, low_latency_mode=True, **options)


class Calls:
    """Calls of one rank that are right but for what a test changes."""

    def __init__(self, buffer):
        self.buffer, lib = buffer, Library("numpy")
        self.own = make(4, buffer.rank, buffer.group_size, H)
        self.x = lib.bf16(self.own.x)
        self.experts = 4 * buffer.group_size

    def layout(self, ids=None, experts=None):
        ids = self.own.ids if ids is None else ids
        return self.buffer.get_dispatch_layout(ids, experts or self.experts)

    def normal(self, **changed):
        per_rank, _, per_expert, is_in, _ = self.layout()
        given = {
            "x": self.x,
            "num_tokens_per_rank": per_rank,
            "is_token_in_rank": is_in,
            "num_tokens_per_expert": per_expert,
            "topk_idx": self.own.ids,
            "topk_weights": self.own.weights,
        }
        return self.buffer.dispatch(**{**given, **changed})

    def low_latency(self, **changed):
        given = {
            "x": self.x,
            "topk_idx": self.own.ids,
            "num_max_dispatch_tokens_per_rank": M,
            "num_experts": self.experts,
            "use_fp8": False,
        }
        return self.buffer.low_latency_dispatch(**{**given, **changed})

    def good(self, size):
        every = [make(4, r, size, H) for r in range(size)]
        got = self.normal()[0]
        same(got, np.stack([every[s].x[t] for s, t in rows_by_source(every, self.buffer.rank)]))


def refused(words, call, kind=braid.InvalidArgument):
    with pytest.raises(kind, match=re.escape(words)):
        call()
