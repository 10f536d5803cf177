"""Names of GPUs, where they stand before nvidia-smi's matrix.

`nvidia-smi -L` tells models and MIG instances, the table of `nvidia-smi` itself tells models.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from braid.topo.facts import Gpu

_GPU_LINE = re.compile(r"\s*GPU (\d{1,4}): (.+?) \(UUID: ([\w-]+)\)\s*$")
_SUMMARY_LINE = re.compile(
    r"\s*(\d{1,4})\s+(\S.*?)\s+(?:On|Off|N/A|TCC|WDDM)\s+[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:"
)
_MOST_WIDE = 200
_MIG_LINE = re.compile(r"\s*MIG (\S+)\s+Device\s+\d+:")


def named(gpus: Sequence[Gpu], lines: Sequence[str]) -> list[Gpu]:
    """GPUs with what `nvidia-smi -L`, or the table of `nvidia-smi`, says about them."""
    said: dict[str, Gpu] = {}
    last = ""
    for line in lines:
        if match := _GPU_LINE.match(line):
            last = f"GPU{int(match[1])}"
            said[last] = Gpu(last, model=match[2], uuid=match[3])
        elif (match := _MIG_LINE.match(line)) and last:
            said[last].mig.append(match[1])
        elif match := _SUMMARY_LINE.match(line[:_MOST_WIDE]):
            name = f"GPU{int(match[1])}"
            said.setdefault(name, Gpu(name, model=match[2]))
    return [
        replace(gpu, model=one.model, uuid=one.uuid, mig=one.mig)
        if (one := said.get(gpu.name))
        else gpu
        for gpu in gpus
    ]
