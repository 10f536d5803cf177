"""The figures of the suite `flexlink` as records show them: required, reached, reached or not."""

from collections.abc import Iterable, Iterator

from braid.bench import flexlink as suite
from braid.bench.figure import NOT_MEASURED, Row, find, row
from braid.bench.flexlink_links import added, held, sums
from braid.bench.verdict import judge
from braid.cases.operations import OPS
from braid.ratio import Interval, part_words, ratio_words
from braid.record.gpu import GpuRecord, GpuResult
from braid.sizes import format_size


def rows(record: GpuRecord, capped: GpuRecord | None = None) -> list[Row]:
    """All figures of one rank count. `capped`: the run with NVLink held to H800's rate."""
    return [
        *_large(record),
        _best(record),
        *sums(record),
        added(record),
        *held(record.ranks, capped),
        _middle(record),
        *_small(record),
        _never_worse(record),
        *_drop_in(record),
        *_blocks(record),
        _repeats(record),
    ]


def _large(record: GpuRecord) -> Iterator[Row]:
    for op in OPS:
        aim = suite.LARGE_AIMS[op].get(record.ranks)
        result = find(record, op, suite.LARGE, "eager")
        judged = judge(result) if result else None
        ratio = judged.to_nccl if judged else None
        yield row(
            f"{op} 256 MiB against NCCL's default",
            record.ranks,
            f">= {aim:.2f}x" if aim else "no figure",
            ratio,
            ratio_words(ratio) if ratio else "no NCCL, or no such case",
            bool(ratio and ratio >= (aim or 0)),
            ratio,
            judged.span("to_nccl") if judged else None,
        )


Value = tuple[float, str, Interval | None]


def _least(results: Iterable[GpuResult], name: str) -> Value | None:
    """The smallest ratio of that name in a verdict, which case it is, and how sure."""
    judged = ((result, judge(result)) for result in results)
    found = [
        (ratio, f"{result.op} {format_size(result.bytes)} {result.mode}", one)
        for result, one in judged
        if (ratio := one.ratio(name)) is not None
    ]
    if not found:
        return None
    ratio, case, least = min(found, key=lambda each: each[:2])
    return ratio, case, least.span(name)


def _least_row(
    work: str, record: GpuRecord, required: str, least: Value | None, aim: float, *, strict: bool
) -> Row:
    if least is None:
        return Row(work, record.ranks, required, f"{NOT_MEASURED}: nobody to compare with", None)
    value, case, span = least
    is_reached = value > aim if strict else value >= aim
    reached = f"{ratio_words(value)} at the least ({case})"
    return Row(work, record.ranks, required, reached, is_reached, value, span)


def _best(record: GpuRecord) -> Row:
    """Where NCCL's other settings took no part, as at 1 GiB, its default is its best."""
    others = [r for r in record.results if any(run.family == "nccl-best" for run in r.runs)]
    least = _least(record.results, "to_nccl_best") if others else None
    alone = sorted({r.bytes for r in record.results} - {r.bytes for r in others})
    sizes = ", ".join(map(format_size, alone))
    beside = f" (of {sizes} its default alone)" if alone and others else ""
    work = f"every case against NCCL at its best{beside}"
    return _least_row(work, record, "> 1.00x", least, suite.BEST_AIM, strict=True)


def _middle(record: GpuRecord) -> Row:
    found = [find(record, op, size, "eager") for op in OPS for size in suite.MIDDLE]
    least = _least((r for r in found if r), "to_nccl")
    work = "16 MiB and 64 MiB, every operation, against NCCL's default"
    return _least_row(work, record, ">= 1.10x", least, suite.MIDDLE_AIM, strict=False)


def _small(record: GpuRecord) -> Iterator[Row]:
    for op in suite.SMALL_OPS:
        found = [find(record, op, size, "graph") for size in suite.SMALL]
        least = _least((r for r in found if r), "to_others")
        work = f"{op} 1 KiB to 4 MiB in a graph: braid's time / that of the best of NCCL and torch"
        missing = _missing_others(found) if least else ""
        yield _part_row(work, record, suite.SMALL_AIM, least, missing)


def _part_row(work: str, record: GpuRecord, aim: float, least: Value | None, missing: str) -> Row:
    """Of small messages: the largest part of somebody's time that braid took."""
    required = f"<= {aim:.2f}x at every size"
    if least is None:
        return Row(work, record.ranks, required, f"{NOT_MEASURED}: nobody to compare with", None)
    part = 1 / least[0]
    reached = f"{part_words(part)} at the most ({least[1]})"
    if missing:
        reached += f"; without {missing}"
    is_reached = None if missing else part <= aim
    return Row(work, record.ranks, required, reached, is_reached, least[0], least[2])


def _missing_others(results: Iterable[GpuResult | None]) -> str:
    """Whose best is not in every case, in words."""
    families = [{run.family for run in result.runs} for result in results if result]
    there = set.intersection(*families)
    names = {"nccl-best": "NCCL's other settings", "symm": "torch's symmetric memory"}
    return " and ".join(words for family, words in names.items() if family not in there)


def _never_worse(record: GpuRecord) -> Row:
    least = _least(record.results, "to_nccl")
    work = f"never worse: all {len(record.results)} cases, against NCCL's default"
    return _least_row(work, record, ">= 0.98x", least, suite.NEVER_WORSE, strict=False)


def _drop_in(record: GpuRecord) -> Iterator[Row]:
    """Where --mscclpp named a library."""
    for op, aim in suite.DROP_IN_AIMS.items():
        found = [find(record, op, size, "graph") for size in suite.SMALL]
        least = _least((r for r in found if r), "to_mscclpp")
        absent = sum(r is None or judge(r).to_mscclpp is None for r in found)
        missing = f"{absent} of {len(found)} sizes" if absent else ""
        work = f"{op} 1 KiB to 4 MiB in a graph: braid's time / that of MSCCL++'s NCCL drop-in"
        yield _part_row(work, record, aim, least, missing)


def _blocks(record: GpuRecord) -> Iterator[Row]:
    for op in suite.SMS_OPS:
        count = record.blocks.get(op)
        yield row(
            f"{op} 256 MiB: SMs used",
            record.ranks,
            f"<= {suite.SMS_AIM}",
            count,
            "torch's profiler saw no kernels" if count is None else f"{count} blocks at the most",
            count is not None and count <= suite.SMS_AIM,
        )


def _repeats(record: GpuRecord) -> Row:
    calls = sum(repeat.calls for repeat in record.repeats)
    different = sum(repeat.different for repeat in record.repeats)
    work = "bits of a float sum, random shares in every call"
    required = f"{suite.REPEATS} calls identical"
    if not calls:
        return Row(work, record.ranks, required, f"{NOT_MEASURED}: the run ended before", None)
    reached = f"{different} of {calls} calls differ" if different else f"{calls} calls identical"
    return Row(work, record.ranks, required, reached, not different and calls >= suite.REPEATS)
