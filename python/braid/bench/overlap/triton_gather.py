# ruff: noqa: ANN001, ANN202, N803
"""The same in Triton: a persistent GEMM by tensor maps, whose programs look at a shard's flag
before they read its rows. What an author would write today without a compiler of CUDA.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_M, _N, _K = 128, 256, 64
_GROUP = 8


@triton.jit  # type: ignore[untyped-decorator]
def _gather(  # type: ignore[no-untyped-def]
    a_ptr, w_ptr, c_ptr, flags, epoch, M, N, K, rows, num_programs,
    TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, GROUP: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [TM, TK])
    w = tl.make_tensor_descriptor(w_ptr, [N, K], [K, 1], [TN, TK])
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [TM, TN])
    tiles_m, tiles_n = tl.cdiv(M, TM), tl.cdiv(N, TN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, num_programs, flatten=False):
        group = tile // (GROUP * tiles_n)
        height = min(tiles_m - group * GROUP, GROUP)
        place = group * GROUP + tile % (GROUP * tiles_n) % height
        column = tile % (GROUP * tiles_n) // height
        of_shard = rows // TM
        shard = (RANKS - place // of_shard) % RANKS
        row = shard * of_shard + place % of_shard
        while tl.atomic_add(flags + shard, 0, sem="acquire", scope="sys") < epoch:
            pass
        total = tl.zeros((TM, TN), dtype=tl.float32)
        for k in tl.range(0, K, TK):
            left, right = a.load([row * TM, k]), w.load([column * TN, k])
            total = tl.dot(left, right.T, total)
        c.store([row * TM, column * TN], total.to(c_ptr.dtype.element_ty))


_ready = False


def _scratch(nbytes: int, _alignment: int, _stream: object) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.int8, device="cuda")


def gather(
    a: torch.Tensor, w: torch.Tensor, c: torch.Tensor, flags: torch.Tensor, epoch: int, rows: int
) -> None:
    """Enqueues it on the current stream. `rows` of a shard are a multiple of 128."""
    global _ready
    if not _ready:
        triton.set_allocator(_scratch)
        _ready = True
    programs = torch.cuda.get_device_properties(a.device).multi_processor_count
    kernel: Any = _gather
    kernel[(programs,)](
        a, w, c, flags, epoch, a.shape[0], w.shape[0], a.shape[1], rows, programs,
        _M, _N, _K, _GROUP, flags.numel(), num_warps=8, num_stages=3,
    )  # fmt: skip
