"""Calls as torch's profiler shows them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_nothing: AbstractContextManager[Any] = nullcontext()


def shown(name: str) -> AbstractContextManager[Any]:
    """Around a call, in the thread that makes it. Costs next to nothing where nobody profiles."""
    if not torch.autograd._profiler_enabled():
        return _nothing
    return torch.profiler.record_function(f"braid:{name}")
