"""GPU records of the form braid.gpu/1, read as if they were of today's form.

They have braid, on registered results, and NCCL as torch sets it up. What they do not say is
"unknown", or the only thing that it was.
"""

from typing import Any

from braid.cases.gpu import CONVENTION, GpuCase
from braid.record import gpu as gpu_record
from braid.record.gpu import GpuRecord, GpuResult, make_run
from braid.record.parts import Host
from braid.typed_json import build

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
        gpu=build(str, document["gpu"], "record.gpu"),
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
    ranks = _count(document["ranks"], "record.ranks", 1 << 20)
    for i, row in enumerate(document["results"]):
        where = f"record.results[{i}]"
        nbytes = _count(row["bytes"], f"{where}.bytes", 1 << 50)
        samples = _samples(row["samples_us"], f"{where}.samples_us")
        who, wrong = build(str, row["who"], f"{where}.who"), build(int, row["wrong"], where)
        case = GpuCase.of(row["op"], nbytes, "bfloat16", ranks, mode)
        calls = 20 if case.own_bytes <= 4 << 20 else 5
        result = cases.setdefault(
            case,
            GpuResult(
                case.op, case.own_bytes, case.total_bytes, case.dtype, mode, calls, None, [], {}
            ),
        )  # fmt: skip
        family = "nccl" if who == "nccl" else "braid"
        result.runs.append(make_run(who, family, samples, case.busbw_gbps, wrong))
    return list(cases.values())


def _count(value: Any, where: str, most: int) -> int:  # noqa: ANN401
    count: int = build(int, value, where)
    if not 1 <= count <= most:
        raise ValueError(f"{where}: asked for 1 to {most}, found {count!r:.40}")
    return count


def _samples(value: Any, where: str) -> list[float]:  # noqa: ANN401
    """Times, one at the least; nothing takes no time."""
    found: list[float] = build(list[float], value, where)
    if not found or min(found) <= 0:
        raise ValueError(f"{where}: asked for times above 0, found {found!r:.40}")
    return found
