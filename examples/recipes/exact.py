"""Two runs of the same program, to the bit."""

import os

import torch


def make_deterministic(*, warn_only: bool = False) -> None:
    """From now on torch's own kernels give the same bits for the same numbers, or raise, or
    warn. Before anything runs on a GPU.

    On H100 and H200 torch 2.11 prefers cuDNN's attention, of which it says itself that it is not
    deterministic; with this it takes the next one, flash attention, which splits a long row of keys
    as well but adds the parts in order. cuBLAS needs workspaces of a fixed size, one per stream.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = False  # kernels that nobody asked for
    torch.backends.cuda.enable_cudnn_sdp(False)
