"""The tables of GPUs in README.md and docs/results.md, from the records.

Used by make_figures.py.
"""

from collections.abc import Iterator

from gpu_figures import (
    all_ranks,
    beside_windows,
    load_gpu,
    names_of,
    record_of,
    since,
    suites,
    unregistered,
    windows_of,
)
from record_notes import RECORDS, link, load

from braid import noise
from braid.bench import flexlink
from braid.bench.figure import find
from braid.bench.verdict import judge
from braid.cases.operations import OPS
from braid.ratio import interval_words, ratio_words
from braid.record.gpu import GpuRecord, GpuResult
from braid.sizes import format_size

SMALL = 8 << 10
MOST_OF_TWO = 64 << 10
"""Bytes of all ranks, of what two programs are compared in."""
UNCLEAR = "?"
"""Behind a ratio that may as well be on the other side of 1."""
WITHOUT_NVLS = (
    "**NCCL ran with `NCCL_NVLS_ENABLE=0`**, without NVLink SHARP. With it NCCL's all-reduce among"
    " four GPUs or more is faster than what is compared here; braid was never measured beside it."
)


def _samples(result: GpuResult) -> int:
    """Of braid, as many as of NCCL's default."""
    run = result.run_of("braid")
    return len(run.samples_us) if run else 0


def _is_noisy(result: GpuResult) -> bool:
    runs = (result.run_of(who) for who in ("braid", "nccl"))
    return any(noise.mark(run.samples_us) for run in runs if run)


def _cell(record: GpuRecord, op: str, nbytes: int, mode: str, *, is_short: bool) -> str:
    result = find(record, op, nbytes, mode)
    judged = judge(result) if result else None
    if result is None or judged is None or judged.to_nccl is None:
        return "-"
    ratio = ratio_words(judged.to_nccl) + (noise.MARK if _is_noisy(result) else "")
    if judged.words("to_nccl") == "unclear":
        ratio += UNCLEAR
    others = {run.family for run in result.runs} - {"braid", "nccl"}
    least = judged.to_nccl_best if is_short else judged.to_others
    best = ratio_words(least) if others and least else ""
    if is_short:
        return f"{ratio} ({best})" if best else ratio
    span = interval_words(judged.span("to_nccl"))
    return f"{ratio} {span} n={_samples(result)}" + (f"; best {best}" if best else "")


def _ratios(record: GpuRecord, nbytes: int, mode: str) -> list[float]:
    found = (find(record, op, nbytes, mode) for op in OPS)
    ratios = (judge(result).to_nccl for result in found if result is not None)
    return [ratio for ratio in ratios if ratio is not None]


def _earlier(ranks: int) -> str:
    """What an earlier version gave where the present one was not measured."""
    record = record_of(ranks)
    large, small = _ratios(record, flexlink.LARGE, "eager"), _ratios(record, SMALL, "graph")
    links = " and ".join(map(link, names_of(ranks)))
    return (
        f"On {ranks} GPUs the present version has not been measured. That of commit"
        f" {record.commit[:7]} had {ratio_words(min(large))} to {ratio_words(max(large))} at"
        f" 256 MiB, and {ratio_words(min(small))} to {ratio_words(max(small))} at 8 KiB in CUDA"
        f" graphs: {links}."
    )


def _where(records: dict[int, GpuRecord]) -> str:
    last = records[max(records)]
    return (
        f"NCCL {last.nccl} as torch {last.torch} sets it up,"
        f" {', '.join(str(ranks) for ranks in records)} x {last.gpu} (virtual machines of one"
        f" kind of host), {last.results[0].dtype}, sizes in bytes per rank"
    )


def _sources(records: dict[int, GpuRecord], folder: str) -> str:
    return ", ".join(
        f"{link(name, folder)} of commit {load_gpu(name).commit[:7]}"
        for ranks in records
        for name in names_of(ranks)
    )


def _ran_without_nvls(records: dict[int, GpuRecord]) -> bool:
    return all(one.options.get("NCCL_NVLS_ENABLE") == "0" for one in records.values())


SHORT = (
    ("all-gather 256 MiB, registered", "all_gather", True),
    ("all-reduce 256 MiB, registered", "all_reduce", True),
    ("all-reduce 256 MiB, not registered", "all_reduce", False),
    ("broadcast 256 MiB, not registered", "broadcast", False),
)
"""Rows of the first screen: words, operation, whether the result is registered."""
GRAPH_BYTES = 4 << 10


def _by_nccl_tests(ranks: int, nbytes: int) -> str:
    """NCCL's time / the drop-in's, all_reduce in a graph."""
    name = f"nccl_tests_time_{ranks}.json"
    if not (RECORDS / name).exists():
        return "not run"
    wanted = ("all_reduce", nbytes, "nccl", True)
    for one in load(name)["ratios"]:
        if (one["program"], one["bytes"], one["place"], one["is_graph"]) == wanted:
            return ratio_words(one["ratio"])
    return "-"


def first_screen(text: str) -> str:
    """A few figures as Markdown for README.md; `text` is the page as it is."""
    records = {ranks: beside_windows(record_of(ranks)) for ranks in suites()}
    plain = {ranks: unregistered(record) for ranks, record in records.items()}
    nccl = next(iter(records.values())).nccl
    without = " without NVLS" if _ran_without_nvls(records) else ""
    gpu = next(iter(records.values())).gpu.removeprefix("NVIDIA ")
    heads = " | ".join(f"{ranks} x {gpu}" for ranks in records)
    lines = [f"| speed-up over NCCL {nccl}{without} | {heads} |", "|---|" + "--:|" * len(records)]
    cells = [_by_nccl_tests(ranks, GRAPH_BYTES) for ranks in records]
    what = f"all-reduce {format_size(GRAPH_BYTES)} in a CUDA graph, by NVIDIA's nccl-tests"
    lines.append(f"| {what} | {' | '.join(cells)} |")
    for words, op, is_registered in SHORT:
        of = records if is_registered else plain
        cells = [_cell(of[ranks], op, flexlink.LARGE, "eager", is_short=True) for ranks in records]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    results = [
        found
        for one in records.values()
        for _, op, _ in SHORT
        if (found := find(one, op, flexlink.LARGE, "eager"))
    ]
    counts = [_samples(one) for one in results]
    lines += [
        "",
        "Above 1 braid is faster, below 1 it is slower. In brackets: beside the fastest of NCCL's"
        " settings that ran, which its zero-CTA setting (copies by copy engines) did not."
        f" Medians of {min(counts)} to {max(counts)} samples"
        f" (`{noise.MARK}`: they vary by more than {noise.MOST:.0%}; `{UNCLEAR}`: the 95 %"
        " interval holds 1). *Registered*: braid's result lies in memory given to"
        " `comm.register()`, NCCL's in plain memory; *not registered*: both in plain memory, as in"
        " a program that was not changed. There the drop-in leaves to NCCL most of what it would"
        " lose.",
    ]
    if said := since(text):
        lines += ["", said]
    return "\n".join(lines)


def table(text: str) -> str:
    """All of the first table as Markdown for docs/results.md; `text` is the page as it is."""
    counts = suites()
    records = {ranks: beside_windows(record_of(ranks)) for ranks in counts}
    lines = [
        "Speed-up (NCCL's time / braid's time), with where it lies with 95 % confidence: **above"
        f" 1 braid is faster, below 1 it is slower.** {_where(records)}. Both were measured in"
        f" turn in one run; *n*: samples of each; `{noise.MARK}`: they vary by more than"
        f" {noise.MOST:.0%}; `{UNCLEAR}`: the interval holds 1. *Best*: against the fastest of"
        " NCCL's settings and torch's symmetric memory.",
        "",
        "- *Registered*: braid's result lies in memory that was given to `comm.register()`; NCCL's"
        " lies in plain memory, which torch does not register. *Not registered*: both lie in plain"
        " memory, as in a program that was not changed. NCCL in its own symmetric windows is one"
        " of the settings behind *best*.",
        f"- {_best_words(counts)}",
        *([f"- {WITHOUT_NVLS}"] if _ran_without_nvls(records) else []),
        f"- Records: {_sources(records, '../records')}.",
        "",
        "| | " + " | ".join(f"{ranks} GPUs" for ranks in counts) + " |",
        "|---|" + "---|" * len(counts),
    ]
    there = {ranks: unregistered(record) for ranks, record in records.items()}
    work = []
    for op in OPS:
        work.append((f"{op} 256 MiB, registered", records, op, flexlink.LARGE, "eager"))
        if any(find(one, op, flexlink.LARGE, "eager") for one in there.values()):
            work.append((f"{op} 256 MiB, not registered", there, op, flexlink.LARGE, "eager"))
    work += [(f"{op} 8 KiB, CUDA graph", records, op, SMALL, "graph") for op in flexlink.SMALL_OPS]
    for words, of, op, nbytes, mode in work:
        cells = [_cell(of[ranks], op, nbytes, mode, is_short=False) for ranks in counts]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    if said := since(text):
        lines += ["", said]
    lines += [
        "",
        f"No gain at 256 MiB (equal within 2 %, slower, or unclear):"
        f" {'; '.join(_no_gain(records))}.",
    ]
    for ranks in set(all_ranks()) - set(counts):
        lines += ["", _earlier(ranks)]
    return "\n".join([*lines, "", *_two_programs()])


def _best_words(counts: list[int]) -> str:
    """What took part as NCCL at its best, and what did not."""
    names = ", ".join(link(windows_of(n), "../records") for n in counts if windows_of(n))
    without = [f"{n} GPUs" for n in counts if not windows_of(n)]
    return (
        "NCCL's settings that ran: its default, 32 CTAs, and symmetric windows in all_gather,"
        " all_reduce and reduce_scatter. Its all_to_all in windows is from nccl-tests, another run"
        f" ({names})" + (f", and was not run on {' and '.join(without)}" if without else "") + "."
        " **NCCL's zero-CTA setting, copies by copy engines, has not run**: it ended in `unhandled"
        " cuda error` in every case. At 1 GiB NCCL's default alone took part."
    )


def _two_programs() -> Iterator[str]:
    """What two programs say of the same calls in graphs."""
    yield (
        "**Small messages in CUDA graphs gain less by NVIDIA's own program.** The same calls of the"
        " same NCCL, by the suite (NCCL through torch.distributed, braid by its own call) and by"
        " nccl-tests (the drop-in in NCCL's place): braid's times agree, NCCL's are 4 to 5 us"
        " longer in the suite, and why is not known. Bytes of all ranks."
    )
    yield ""
    yield (
        "| GPUs | call in a graph | nccl-tests: NCCL, braid, ratio | suite: NCCL, braid, ratio |"
        " records |"
    )
    yield "|--:|---|---|---|---|"
    for ranks in suites():
        name = f"nccl_tests_time_{ranks}.json"
        if (RECORDS / name).exists():
            yield from _two_rows(ranks, name)


def _two_rows(ranks: int, name: str) -> Iterator[str]:
    record = record_of(ranks)
    told = {
        (one["program"], one["bytes"]): one
        for one in load(name)["ratios"]
        if one["is_graph"] and one["place"] == "nccl"
    }
    links = ", ".join(link(each, "../records") for each in (name, *names_of(ranks)))
    for result in record.results:
        theirs = told.get((result.op, result.total_bytes))
        both = [result.run_of(who) for who in ("nccl", "braid")]
        if theirs is None or result.mode != "graph" or result.total_bytes > MOST_OF_TWO:
            continue
        us = ", ".join(f"{run.median_us:.2f}" for run in both if run)
        ratio = judge(result).to_nccl
        yield (
            f"| {ranks} | {result.op} {format_size(result.total_bytes)} |"
            f" {theirs['nccl_us']:.2f}, {theirs['braid_us']:.2f} us,"
            f" {ratio_words(theirs['ratio'])} | {us} us, {ratio_words(ratio or 0)} | {links} |"
        )


def _no_gain(records: dict[int, GpuRecord]) -> Iterator[str]:
    """Of every rank count the operations that are no faster than NCCL's default."""
    for ranks, record in records.items():
        for how, of in (("registered", record), ("not registered", unregistered(record))):
            found = {op: find(of, op, flexlink.LARGE, "eager") for op in OPS}
            words = {op: judge(one).words("to_nccl") for op, one in found.items() if one}
            named = [op for op, word in words.items() if word not in ("", "faster")]
            if named:
                yield f"on {ranks} GPUs {how}: {', '.join(named)}"
