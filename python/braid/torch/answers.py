"""What torch asks about a group, and about its backend for a device, which are one object here."""

from typing import Any

import torch
from torch.distributed import ProcessGroup

from braid.torch.errors import Unsupported
from braid.torch.work import SeveralWorks


class Answers(ProcessGroup):
    """The part of a group that makes no calls."""

    def __init__(self, rank: int, size: int, name: str, store: Any) -> None:
        super().__init__(rank, size)
        self._name, self._desc = name, ""
        self._store = store
        self._calls = 0
        self._together: list[Any] | None = None  # works between _start_ and _end_coalescing

    def _noted(self, work: Any) -> Any:
        if self._together is not None:
            self._together.append(work)
        return work

    def getBackendName(self) -> str:  # noqa: N802
        return "braid"

    def name(self) -> str:
        return "braid"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def get_group_store(self) -> Any:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: torch.device) -> "Answers":
        if torch.device(device).type not in ("cpu", "cuda"):
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self

    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False
    supports_shrinking = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        del device
        return False

    def _start_coalescing(self, device: torch.device) -> None:
        del device
        self._together = []

    def _end_coalescing(self, device: torch.device) -> SeveralWorks:
        del device
        works, self._together = self._together or [], None
        return SeveralWorks(works)

    def _set_sequence_number_for_group(self) -> None:
        self._calls = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def split_group(self, *_args: Any, **_kwargs: Any) -> ProcessGroup:
        raise Unsupported(
            f"group {self._name}: asked to split, which braid cannot; call"
            " torch.distributed.new_group(ranks), which only its members wait for"
        )

    def merge_remote_group(self, *_args: Any, **_kwargs: Any) -> ProcessGroup:
        raise Unsupported(
            f"group {self._name}: asked to merge with a remote group, which braid cannot; call"
            " torch.distributed.init_process_group with all ranks"
        )
