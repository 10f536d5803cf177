"""GPU records of the form braid.gpu/1, read as if they were of today's form.

They have braid, on registered results, and NCCL as torch sets it up. What they do not say is
"unknown", or the only thing that it was.
"""

from typing import Any

from braid.bench import gpu_record
from braid.bench.case import CONVENTION, GpuCase
from braid.bench.gpu_record import GpuRecord, GpuResult, make_run
from braid.record import Host

SCHEMA = "braid.gpu/1"


def read(document: Any) -> GpuRecord:  # noqa: ANN401 - what json.loads gives
    """A record of either form."""
    if document["schema"] != SCHEMA:
        return gpu_record.from_json(document)
    return GpuRecord(
        schema=SCHEMA,
        command=document["command"],
        date=document["date"],
        commit=document["commit"],
        dirty=document["dirty"],
        gpu=document["gpu"],
        driver="unknown",
        cuda=document["cuda"],
        torch=document["torch"],
        nccl=document["nccl"],
        braid="unknown",
        host=Host("unknown", 0, 0.0, "unknown"),
        ranks=document["ranks"],
        sizes=CONVENTION,
        settings={},
        options=document["options"],
        results=_results(document),
    )


def _results(document: Any) -> list[GpuResult]:  # noqa: ANN401
    """Rows of one case are joined; all were bf16, and a run was all eager or all graph."""
    mode = "graph" if "--graph" in document["command"] else "eager"
    cases: dict[GpuCase, GpuResult] = {}
    for row in document["results"]:
        case = GpuCase.of(row["op"], row["bytes"], "bfloat16", document["ranks"], mode)
        calls = 20 if case.bytes <= 4 << 20 else 5
        result = cases.setdefault(
            case,
            GpuResult(
                case.op, case.bytes, case.total_bytes, case.dtype, mode, calls, None, [], {}
            ),
        )  # fmt: skip
        family = "nccl" if row["who"] == "nccl" else "braid"
        result.runs.append(
            make_run(row["who"], family, row["samples_us"], case.busbw_gbps, row["wrong"])
        )
    return list(cases.values())
