"""How many thread blocks a call keeps on the GPU at once: no more SMs than that are busy with it.

Read from torch's profiler, whose trace has every kernel's grid, begin and end. Where the profiler
sees no kernels there is no number.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any


def busiest(events: Iterable[dict[str, Any]]) -> int | None:
    """The most blocks of kernels that run at the same time, of a Chrome trace's events. None
    without kernels.
    """
    changes: list[tuple[float, int]] = []
    for event in events:
        if event.get("cat") == "kernel":
            count = prod(event["args"]["grid"])
            changes.append((event["ts"], count))
            changes.append((event["ts"] + event["dur"], -count))
    now = most = 0
    for _, change in sorted(changes):  # at the same time, ends come before beginnings
        now += change
        most = max(most, now)
    return most if changes else None


def of_calls(run: Callable[[], object], calls: int = 3) -> int | None:
    """Of a few calls in a row."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        return busiest(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])
