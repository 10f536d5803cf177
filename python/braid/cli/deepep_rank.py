"""One rank of `braid deepep-check`: both modes once, every row compared."""

import sys

import numpy as np

import braid
from braid.moe import Buffer

_HIDDEN, _TOKENS, _TOPK, _EXPERTS = 256, 16, 2, 4


def main() -> int:
    with braid.init(tune=False, progress=False) as comm:
        random = np.random.default_rng(comm.rank)
        experts = _EXPERTS * comm.size
        x = random.integers(-9, 9, (_TOKENS, _HIDDEN)).astype(np.float32)
        ids = np.stack([random.permutation(experts)[:_TOPK] for _ in range(_TOKENS)])
        weights = np.full((_TOKENS, _TOPK), 0.5, np.float32)
        size = Buffer.get_low_latency_rdma_size_hint(_TOKENS, 2 * _HIDDEN, comm.size, experts)
        with Buffer(comm, 1 << 20, size, low_latency_mode=True) as buffer:
            per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(ids, experts)
            rows, _, _, _, handle, _ = buffer.dispatch(
                x, None, per_rank, None, is_in, per_expert, ids, weights
            )
            back, _, _ = buffer.combine(rows, handle)
            fast, _, fast_handle, _, _ = buffer.low_latency_dispatch(
                x, ids, _TOKENS, experts, use_fp8=False
            )
            same, _, _ = buffer.low_latency_combine(fast, ids, weights, fast_handle)
        normal = bool((back == x * is_in.sum(1)[:, None]).all())
        low_latency = bool((same == x).all())
        if comm.rank == 0:
            print(f"dispatch and combine: {'equal' if normal else 'WRONG'}")
            print(f"low latency: {'equal' if low_latency else 'WRONG'}")
        return 0 if normal and low_latency else 1


if __name__ == "__main__":
    sys.exit(main())
