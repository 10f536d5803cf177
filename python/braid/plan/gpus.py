"""GPUs by the names that drivers give them: what one can compute, and what it holds."""

import re
from dataclasses import dataclass

from braid.plan import shipped

_GIGABYTES = re.compile(r"\b(\d{1,3}) ?GB\b")


@dataclass(frozen=True)
class Gpu:
    """One of them."""

    name: str
    peak_tflops: float
    """Dense bf16, or fp16 where it is older than bf16."""
    memory_gb: float
    origin: str


def find(model: str) -> Gpu | None:
    """ "NVIDIA A100-SXM4-40GB", "H100 NVL"; None for a GPU that the table does not have."""
    for name, row in shipped.table("gpus").items():
        if re.search(row["match"], model, re.IGNORECASE):
            said = _GIGABYTES.search(model)
            memory = float(said[1]) if said and not model.startswith("NVIDIA GH200") else 0.0
            return Gpu(
                name, row["peak_tflops"], memory or row["memory_gb"], shipped.source(row["source"])
            )
    return None
