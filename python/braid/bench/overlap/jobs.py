"""Cases of the stand as jobs: every contestant checked, then all timed in turn."""

import random
from collections.abc import Callable, Iterable, Sequence

import torch

from braid.bench.overlap.checked import WARM, series_of
from braid.bench.overlap.gathers import Gathers
from braid.bench.overlap.scatters import Scatters
from braid.bench.overlap.stand import PRESET, Call, Case, Plain, Stand
from braid.overlap.tuner import fastest
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.record.probe import Series

CHOICE = "; tuning's choice"
_SLEEP_CYCLES = 3_000_000  # the host enqueues a whole call meanwhile, some 40 copies and launches

STAND = (
    Case("GPT-3 TP8, m 8192", "ag", 8192, 43008, 12288),
    Case("Llama-70B TP8, m 8192", "ag", 8192, 25088, 8192),
    Case("as long as the GEMM, m 4096", "ag", 4096, 14336, 12288),
    Case("GPT-3 TP8, m 2048", "ag", 2048, 43008, 12288),
    Case("GPT-3 TP8, m 1024", "ag", 1024, 43008, 12288),
    Case("GPT-3 TP8, m 8192", "rs", 8192, 12288, 43008),
    Case("Llama-70B TP8, m 8192", "rs", 8192, 8192, 25088),
    Case("as long as the GEMM, m 4096", "rs", 4096, 12288, 14336),
    Case("GPT-3 TP8, m 2048", "rs", 2048, 12288, 43008),
    Case("GPT-3 TP8, m 1024", "rs", 1024, 12288, 43008),
    Case("Llama-70B TP8, m 512", "ag", 512, 25088, 8192),
    Case("Llama-70B TP8, m 64", "ag", 64, 25088, 8192),
    Case("Llama-70B TP8, m 512", "rs", 512, 8192, 25088),
    Case("Llama-70B TP8, m 64", "rs", 64, 8192, 25088),
)
GEMMS = tuple(
    Case(name, "gemm", m, n, k, dtype)
    for dtype, rows in (("bfloat16", (64, 512, 2048, 4096, 8192)), ("float16", (8192,)))
    for name, n, k in (
        ("GPT-3 AG", 6144, 12288),
        ("GPT-3 RS", 12288, 6144),
        ("Llama-70B AG", 3584, 8192),
        ("Llama-70B RS", 8192, 3584),
    )
    for m in rows
)
_TITLES = {"ag": "stand: host link, AG+GEMM", "rs": "stand: host link, GEMM+RS", "gemm": "GEMM"}
_Field = Gathers | Scatters | Plain
_MAKERS: dict[str, Callable[[Stand, Case], _Field]] = {
    "ag": Gathers,
    "rs": Scatters,
    "gemm": Plain,
}


def group_of(case: Case) -> str:
    """Its contestants are comparable."""
    shape = f"{case.m}x{case.n}x{case.k}"
    return f"{_TITLES[case.op]}, {case.name}, {shape} {case.dtype}"


def job_of(stand: Stand, case: Case) -> Job:
    def run(effort: Effort, tick: Tick) -> list[Series]:
        field = _MAKERS[case.op](stand, case)
        ways = field.contestants()
        errors, absent = _check(field, ways)
        chosen = _chosen({name: ways[name] for name in errors})
        stand.check()
        times = _race(stand, {name: ways[name] for name in errors}, effort, tick)
        del field, ways
        torch.cuda.empty_cache()
        missing = [
            Series(group_of(case), name, 0, None, None, verdict="unsupported", note=why)
            for name, why in absent.items()
        ]
        moved, said = case.m * case.k * 2, {chosen: CHOICE}
        found = [
            series_of(
                group_of(case),
                name,
                moved,
                case.flops,
                errors[name],
                times[name],
                said.get(name, ""),
            )
            for name in errors
        ]
        return found + missing

    return Job(f"{case.op} {case.name}", case.m * case.k * 2, run)


def _candidates(names: Iterable[str]) -> list[str]:
    """What tuning chooses among: the way in turn, and braid's. Empty for a GEMM."""
    in_turn = [name for name in names if "then" in name]
    ours = [name for name in names if name.startswith("braid") and name != PRESET]
    return [*in_turn, *ours] if in_turn else []


def _chosen(ways: dict[str, Call]) -> str:
    """By the tuner of braid.overlap, before the race."""
    names = _candidates(ways)
    if not names:
        return ""
    number, _ = fastest(lambda us: us, _time_us, [ways[name] for name in names])
    return names[number]


def _check(field: _Field, ways: dict[str, Call]) -> tuple[dict[str, float], dict[str, str]]:
    """Everyone's error, and who is missing: other versions of Triton may not take its kernel."""
    errors: dict[str, float] = {}
    absent: dict[str, str] = {}
    for name, call in ways.items():
        try:
            errors[name] = field.wrong(call)
        except Exception as error:
            if not name.startswith("Triton"):
                raise
            absent[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return errors, absent


def _race(
    stand: Stand, ways: dict[str, Call], effort: Effort, tick: Tick
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        for _ in range(WARM):
            call()
    stand.check()

    def sample() -> float:
        order = list(ways)
        random.shuffle(order)
        for name in order:
            times[name].append(_time_us(ways[name]))
        return 0.0

    effort.repeat(sample, tick)
    stand.check()
    return times


def _time_us(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(_SLEEP_CYCLES)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def figures_of(series: Sequence[Series]) -> dict[str, float]:
    """Of a stand: E_overlap = 1 - ECT / ECT of the sequential way, where ECT is what a way takes
    beyond the GEMM alone; its time by the GEMM's; and what tuning chose before the race by the best
    of what it chose among. Of a GEMM: the best of cuBLAS by ours.
    """
    figures: dict[str, float] = {}
    for group in dict.fromkeys(each.group for each in series):
        medians = {
            each.case: each.times.p50_us for each in series if each.group == group and each.times
        }
        chosen = [each.case for each in series if each.group == group and CHOICE in each.note]
        figures.update(_of_group(group, medians, chosen[0] if chosen else ""))
    return figures


def _of_group(group: str, medians: dict[str, float], chosen: str) -> dict[str, float]:
    ours = {name: us for name, us in medians.items() if name.startswith("braid")}
    if group.startswith("GEMM"):
        cublas = min(us for name, us in medians.items() if name.startswith("cuBLAS"))
        return {f"{group}: cuBLAS by braid": cublas / min(ours.values())} if ours else {}
    alone = medians.get("GEMM alone")
    first = next((us for name, us in medians.items() if "then" in name), None)
    if alone is None or first is None:
        return {}
    rivals = {name: us for name, us in medians.items() if name not in ours and name != "GEMM alone"}
    fused = {name: us for name, us in ours.items() if "preset" not in name}
    found = {f"{group}: communication by GEMM": (first - alone) / alone}
    for name, us in [*rivals.items(), ("braid", min(fused.values()))]:
        if us != first:
            found[f"{group}: E_overlap of {name}"] = 1 - (us - alone) / (first - alone)
    if chosen:
        fixed = [medians[name] for name in _candidates(medians)]
        found[f"{group}: tuning's choice by the best"] = medians[chosen] / min(fixed)
        found[f"{group}: tuning's choice by in turn"] = medians[chosen] / first
    found[f"{group}: braid by GEMM alone"] = min(fused.values()) / alone
    found[f"{group}: sequential by braid"] = first / min(fused.values())
    found[f"{group}: best rival by braid"] = min(rivals.values()) / min(fused.values())
    return found


def select(what: str) -> list[Case]:
    """stand, gemm, or all."""
    chosen = {"stand": STAND, "gemm": GEMMS, "all": (*STAND, *GEMMS)}[what]
    return list(chosen)
