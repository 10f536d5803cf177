"""What a call launches, as CUDA's profiler sees it."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def blocks_of(call: Callable[[], Any]) -> list[int]:
    """Of each kernel. The profiler raises what it likes, before the call or behind it."""
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        call()
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [int(prod(each["args"]["grid"])) for each in events if each.get("cat") == "kernel"]
