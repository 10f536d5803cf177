"""Tables of GEMMs that communicate, from records: docs/overlap.md has what users get between GPUs,
docs/measured/overlap.md times of every way, the one-GPU stand and the GEMM alone.

Used by make_figures.py.
"""

from collections.abc import Iterator

from record_notes import link, load

from braid.record.probe import ProbeRecord, from_json

STAND, GEMM = "overlap_stand_1.json", "overlap_gemm_1.json"
BETWEEN = ("overlap_tp2.json", "overlap_tp4.json", "overlap_tp8.json")
_CHOICE = "tuning's choice by the best"
_RIVALS = ("chunked cuBLAS", "Triton, same flags")


def _record(name: str) -> ProbeRecord:
    return from_json(load(name))


def _figure(record: ProbeRecord, group: str, name: str) -> str:
    value = record.figures.get(f"{group}: {name}")
    return "not run" if value is None else f"{value:.2f}"


def _times(record: ProbeRecord, group: str) -> dict[str, str]:
    """Medians in ms by contestant; braid by the fastest of its ways, which tuning would take.

    With flags preset its kernel waits for nobody: that is a bound, no contestant.
    """
    least: dict[str, float] = {}
    for one in record.series:
        if one.group == group and one.times:
            who = "braid" if one.case.startswith(("braid 128", "braid 256")) else one.case
            least[who] = min(one.times.p50_us / 1000, least.get(who, float("inf")))
    return {who: f"{ms:.2f}" for who, ms in least.items()}


def stand() -> Iterator[str]:
    """Rows of the stand: what each way took, and how much of the communication was hidden."""
    record = _record(STAND)
    yield (
        f"One {record.device}; medians in ms of {_samples(record)} samples in turn, every product"
        " compared with float64 first. *comm.*: the copy alone by the GEMM alone."
    )
    yield ""
    yield "| shape (M x N x K) | comm. | GEMM | sequential | chunked cuBLAS | Triton | braid |" + (
        " E of chunked, Triton, braid | tuning's choice by the best |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|---|--:|"
    for group in dict.fromkeys(one.group for one in record.series):
        times = _times(record, group)
        sequential = next(ms for case, ms in times.items() if ", then " in case)
        hidden = [_figure(record, group, f"E_overlap of {who}") for who in (*_RIVALS, "braid")]
        took = [times.get(case, "-") for case in ("GEMM alone", *_RIVALS, "braid")]
        name = group.removeprefix("stand: host link, ").removesuffix(" bfloat16")
        yield (
            f"| {name} | {_figure(record, group, 'communication by GEMM')} | {took[0]} |"
            f" {sequential} | {' | '.join(took[1:])} | {', '.join(hidden)} |"
            f" {_figure(record, group, _CHOICE)} |"
        )


def _samples(record: ProbeRecord) -> int:
    return min(len(one.times.samples_us) for one in record.series if one.times)


def gemm() -> Iterator[str]:
    """cuBLAS's time / that of braid's kernel, all flags set: a row a product, a column an m."""
    record = _record(GEMM)
    table: dict[str, dict[int, str]] = {}
    for name, value in record.figures.items():
        title, shape = name.removeprefix("GEMM, ").removesuffix(": cuBLAS by braid").split(", ")
        sizes, dtype = shape.split(" ")
        rows, columns, depth = sizes.split("x")
        at = f"{title}, N {columns}, K {depth}, {dtype}"
        table.setdefault(at, {})[int(rows)] = f"{value:.2f}"
    counts = sorted({m for row in table.values() for m in row})
    yield (
        "The GEMM alone, all flags set before, as a speed-up (cuBLAS's time / braid's time): above"
        " 1 braid is faster."
    )
    yield ""
    yield f"| product | {' | '.join(f'm {m}' for m in counts)} |"
    yield "|---|" + "--:|" * len(counts)
    for at, row in table.items():
        yield f"| {at} | {' | '.join(row.get(m, '') for m in counts)} |"


def tables() -> str:
    """Of one GPU, as Markdown."""
    return "\n".join([*stand(), "", *gemm()])


_WAYS = (
    "GEMM alone", "NCCL and cuBLAS in turn", "braid and cuBLAS in turn", "torch, fused", "braid",
)  # fmt: skip


_LAYERS = ("AG+GEMM", "GEMM+RS", "GEMM+AR")
_FOLDER = "../records"


def in_short() -> str:
    """Layers between GPUs for the manual: the best other way's time by braid's, what is hidden."""
    records = {name: _record(name) for name in BETWEEN}
    names = list(dict.fromkeys(_model_of(group) for group in _groups(records[BETWEEN[0]])))
    rows = sorted({_rows_of(group) for one in records.values() for group in _groups(one)})
    lines = [
        "The time of the fastest other way (NCCL and cuBLAS in turn, braid and cuBLAS in turn,"
        " torch's fused operation) by braid's; above 1 braid is faster. In brackets, where tuning"
        " took a kernel: the part of the communication that is hidden, beside NCCL and cuBLAS in"
        " turn. *m*: rows of all ranks.",
        "",
        f"| GPUs | layer | {' | '.join(f'm {m}' for m in rows)} |",
        "|---|---|" + "--:|" * len(rows),
    ]
    for record in records.values():
        for model in names:
            for layer in _LAYERS:
                cells = (_in_short(record, layer, model, m) for m in rows)
                device = record.device.removeprefix("NVIDIA ").split(" ")[0]
                lines.append(
                    f"| {record.ranks} x {device} | {layer}, {model} | {' | '.join(cells)} |"
                )
    told = (f"{link(name, _FOLDER)} ({one.commit[:8]})" for name, one in records.items())
    return "\n".join([*lines, "", f"Records: {', '.join(told)}."])


def _groups(record: ProbeRecord) -> list[str]:
    return list(dict.fromkeys(one.group for one in record.series))


def _model_of(group: str) -> str:
    return group.split(", ")[2]


def _rows_of(group: str) -> int:
    return int(group.split(", ")[3].removeprefix("m "))


def _in_short(record: ProbeRecord, layer: str, model: str, rows: int) -> str:
    start = f"TP{record.ranks}, {layer}, {model}, m {rows}, "
    group = next((each for each in _groups(record) if each.startswith(start)), "")
    ours = [one for one in record.series if one.group == group and one.case == "braid"]
    if not ours:
        return "-"
    ratio = _figure(record, group, "best other by braid")
    is_kernel = ours[0].note.split("; ")[1] != "sequential"
    return f"{ratio} ({_figure(record, group, 'E_overlap of braid')})" if is_kernel else ratio


def between_gpus() -> str:
    """Layers of 2, 4 and 8 ranks over NVLink: what each way took, and what braid chose."""
    return "\n\n".join(_between(_record(name)) for name in BETWEEN)


def _between(record: ProbeRecord) -> str:
    lines = [
        f"{record.ranks} x {record.device}, NCCL {record.settings['nccl']}, torch"
        f" {record.versions['torch']}; medians in us of {_samples(record)} samples in turn, the"
        " slowest rank's, every product compared with float64 first.",
        "",
        "| layer (M x N x K) | GEMM | NCCL, cuBLAS | braid, cuBLAS | torch, fused | braid |"
        " best other / braid | E of torch, braid | braid's way |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for group in dict.fromkeys(one.group for one in record.series):
        cases = {one.case: one for one in record.series if one.group == group}
        took = [
            f"{one.times.p50_us:.0f}" if (one := cases.get(way)) and one.times else "-"
            for way in _WAYS
        ]
        chosen = cases["braid"].note.split("; ")[1]
        best = record.figures[f"{group}: best other by braid"]
        name = group.split(", ", 1)[1]
        hidden = [
            _figure(record, group, f"E_overlap of {who}") for who in ("torch, fused", "braid")
        ]
        lines.append(
            f"| {name} | {' | '.join(took)} | {best:.2f} | {', '.join(hidden)} | {chosen} |"
        )
    return "\n".join(lines)
