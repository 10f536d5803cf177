"""The record of a run: its results and the machine they are of."""

from datetime import UTC, datetime
from pathlib import Path

import torch

import braid
from braid.bench import facts
from braid.bench.rates import with_rates
from braid.cases.gpu import CONVENTION
from braid.record.gpu import SCHEMA, GpuRecord, GpuResult, Repeats

_DRIVER = Path("/proc/driver/nvidia/version")


def driver() -> str:
    """NVIDIA's, by its version."""
    try:
        words = _DRIVER.read_text(encoding="utf-8").split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def make_record(
    ranks: int,
    commit: str,
    settings: dict[str, str],
    results: list[GpuResult],
    repeats: list[Repeats],
    blocks: dict[str, int],
    stopped: str,
) -> GpuRecord:
    """Everything about this run. `commit` is for a tree without git."""
    commit, dirty = facts.commit(commit)
    made = GpuRecord(
        schema=SCHEMA,
        command=facts.command(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        gpu=torch.cuda.get_device_name(),
        driver=driver(),
        cuda=str(torch.version.cuda),
        torch=torch.__version__,
        nccl=".".join(map(str, torch.cuda.nccl.version())),
        braid=braid.__version__,
        host=facts.host(),
        ranks=ranks,
        sizes=CONVENTION,
        settings=settings,
        options=facts.variables(),
        results=results,
        repeats=repeats,
        blocks=blocks,
        stopped=stopped,
    )
    return with_rates(made)
