"""Ranks of a torch.distributed job for tests. Skipped where torch is not installed.

The folder is not called torch: tests/python is on the path, where `import torch` would find it.
Torch is imported once, here, before ranks are forked: that takes longer than most tests.
"""

import importlib.util
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
# test_installed.py is left, and says "skipped".
collect_ignore_glob = [] if HAS_TORCH else ["test_[!i]*.py"]

if HAS_TORCH:
    import torch
    import torch._dynamo  # optimizers import it at their first step, else in every rank
    import torch.distributed as dist

    import braid.torch  # noqa: F401


class TorchRanks:
    """Runs a function on n ranks inside a process group."""

    def __init__(self, ranks: Any) -> None:
        self._ranks = ranks

    def start(
        self,
        size: int,
        body: Callable[[], Any],
        backend: str = "braid",
        timeout_s: float = 20,
        options: dict[str, str] | None = None,
    ) -> list[Any]:
        """The started ranks; for tests in which one dies."""

        def main() -> Any:
            torch.set_num_threads(1)
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
            value = body()
            if dist.is_initialized():
                dist.destroy_process_group()
            return value

        return self._ranks.start(size, main, options)

    def collect(self, started: list[Any], **more: Any) -> list[Any]:
        """What start()'s ranks returned."""
        return self._ranks.collect(started, **more)

    def __call__(self, size: int, body: Callable[[], Any], *args: Any, **more: Any) -> list[Any]:
        return self.collect(self.start(size, body, *args, **more))


@pytest.fixture
def torch_ranks(ranks: Any) -> TorchRanks:
    """torch_ranks(2, torch.distributed.get_rank) == [0, 1]."""
    return TorchRanks(ranks)
