"""GEMMs that communicate while they compute: docs/overlap.md.

ag_gemm(x_shard, w)   all-gather of the rows of x, then x @ w.T
gemm_rs(x, w)         x @ w.T, summed over the ranks, each keeping its rows
gemm_ar(x, w)         x @ w.T, summed over the ranks, on every rank

torch tensors, bfloat16 or float16 on GPUs of compute capability 9.0; what no kernel takes, CPU
tensors among it, goes the sequential way: a collective of braid and torch's own product.
"""

from braid.overlap.operations import ag_gemm, gemm_ar, gemm_rs, way_of

__all__ = ["ag_gemm", "gemm_ar", "gemm_rs", "way_of"]
