"""Tables that are written by hand say what the records beside them say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MOE = "docs/measured/moe.md"
TOKENS = (1, 128, 4096)


def record(name: str) -> Any:
    return json.loads((ROOT / "records" / f"{name}.json").read_text())


def words_of(page: str) -> str:
    """In one line."""
    return " ".join((ROOT / page).read_text().split())


def rows_behind(page: str, words: str) -> list[list[str]]:
    """The cells of the first table behind these words, without its head, bold or not."""
    text = (ROOT / page).read_text()
    lines = text[text.index(words) :].split("\n|", 1)[1].split("\n\n", 1)[0].split("\n")
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines[2:]]


def medians(ranks: int) -> dict[str, dict[int, float]]:
    """us of each case of DeepEP's race, by tokens."""
    found: dict[str, dict[int, float]] = {}
    for series in record(f"moe_deepep_h200_{ranks}")["series"]:
        tokens = int(re.findall(r"(\d+) tokens", series["group"])[0])
        found.setdefault(series["case"], {})[tokens] = series["times"]["p50_us"]
    return found


EAGER = "both ways, eager, exact sizes"
RACED = {
    "low-latency dispatch, fp8, graph": "low latency dispatch fp8, graph",
    "low-latency combine, bf16, graph": "low latency combine bf16, graph",
    "normal dispatch, bf16, graph, 24 multiprocessors": "normal dispatch, 24 SMs, graph",
    "normal dispatch, fp8, graph, 24": "normal dispatch fp8, 24 SMs, graph",
    "normal combine, bf16, graph, 24": "normal combine, 24 SMs, graph",
    "normal dispatch, bf16, eager, exact sizes, 24": "normal dispatch, 24 SMs, eager, exact sizes",
}
"""A row's first cell: the case of braid's, whose other's has DeepEP before it."""
BOTH_WAYS = {
    "both ways, eager: normal, exact sizes": (f"braid, {EAGER}", f"DeepEP, {EAGER}"),
    "both ways, eager: low latency": (
        f"braid low latency, {EAGER}",
        f"DeepEP low latency, {EAGER}",
    ),
}


def test_moe_beside_deepep():
    case, seen = "", 0
    for name, *cells in rows_behind(MOE, "### DeepEP in the same run"):
        case = case.replace("24 SMs", "20 SMs") if name == "the same, 20" else RACED.get(name, "")
        ours, theirs = BOTH_WAYS.get(name) or (case, f"DeepEP {case}")
        for number, cell in enumerate(cells):
            if not cell:
                continue
            found, tokens = medians((4, 8)[number // 3]), TOKENS[number % 3]
            said = f"{found[ours][tokens]:,.0f} beside {found[theirs][tokens]:,.0f}"
            assert cell == said, f"{name}, cell {number + 1}"
            seen += 1
    assert seen == 60


def test_what_is_bold_is_slower():
    """By more than 5 %, in a call of 4096 tokens or an eager one."""
    text = (ROOT / MOE).read_text()
    table = text[text.index("### DeepEP in the same run") :].split("\n\n")[2]
    for line in table.split("\n")[2:]:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for number, cell in enumerate(cells):
            if cell and ("eager" in name or TOKENS[number % 3] == 4096):
                ours, theirs = (
                    int(us.replace(",", "")) for us in cell.strip("*").split(" beside ")
                )
                assert cell.startswith("**") == (ours > 1.05 * theirs), f"{name}: {cell}"


SEVERAL = {
    "low-latency dispatch, fp8, graph": ("low latency dispatch fp8, graph",),
    "low-latency combine, bf16, graph: exact / by rank": (
        "low latency combine bf16, graph",
        "low latency combine by rank bf16, graph",
    ),
    "normal dispatch, bf16 / fp8, worst-case rows, graph, all SMs": (
        "normal dispatch, all SMs, graph",
        "normal dispatch fp8, all SMs, graph",
    ),
    "normal combine, bf16, graph, all SMs": ("normal combine, all SMs, graph",),
    "both ways, eager, exact sizes: normal": (f"braid, {EAGER}",),
    "both ways, eager: low latency, bf16: exact / by rank": (
        f"braid low latency, {EAGER}",
        f"braid low latency by rank, {EAGER}",
    ),
    "the same by NCCL's all_to_all_single": (f"nccl all_to_all_single, {EAGER}",),
    "no routing: braid's all-gather and reduce-scatter": (
        f"braid all-gather and reduce-scatter, {EAGER}",
    ),
}


def test_moe_of_four_and_eight():
    rows = rows_behind(MOE, "On four and eight H200 (`-n 4`, `-n 8`;")
    assert [row[0] for row in rows] == list(SEVERAL)
    for name, *cells in rows:
        for number, cell in enumerate(cells):
            if cell:
                found, tokens = medians((4, 8)[number // 3]), TOKENS[number % 3]
                said = " / ".join(f"{found[case][tokens]:,.0f}" for case in SEVERAL[name])
                assert cell == said, f"{name}, cell {number + 1}"


def speed_up(ranks: int, ours: str, theirs: str, tokens: int) -> str:
    found = medians(ranks)
    return f"{found[theirs][tokens] / found[ours][tokens]:.2f}x"


def in_graphs(ranks: int, tokens: int, *cases: str) -> str:
    """Those of cases beside DeepEP's, from the least to the most."""
    found = sorted({speed_up(ranks, case, f"DeepEP {case}", tokens) for case in cases})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


NORMAL_DISPATCH = [
    f"normal dispatch{kind}, {blocks} SMs, graph" for kind in ("", " fp8") for blocks in (20, 24)
]
NORMAL_COMBINE = [f"normal combine, {blocks} SMs, graph" for blocks in (20, 24)]
LOW_LATENCY = [RACED[name] for name in list(RACED)[:2]]
NORMAL_EAGER, LOW_LATENCY_EAGER = BOTH_WAYS.values()


def without_times(cell: str) -> str:
    return re.sub(r" \([^)]*us\)", "", cell).replace("*", "")


def test_moe_in_the_manual():
    """The table of speed-ups over DeepEP, with times of braid's in brackets."""
    rows = rows_behind("docs/moe.md", "**Beside DeepEP v1.2.1**")
    graphs, eager = (rows[:3], rows[6:7]), (rows[3:6], rows[7:])
    for ranks, of_graphs, of_eager in zip((4, 8), graphs, eager, strict=True):
        for tokens, (_, _, low, normal) in zip(TOKENS[-len(of_graphs) :], of_graphs, strict=True):
            each = [in_graphs(ranks, tokens, case) for case in LOW_LATENCY] if low else []
            assert without_times(low) == "; ".join(each)
            both = [in_graphs(ranks, tokens, *cases) for cases in (NORMAL_DISPATCH, NORMAL_COMBINE)]
            assert without_times(normal) == "; ".join(both)
        for tokens, (_, _, low, normal) in zip(TOKENS[-len(of_eager) :], of_eager, strict=True):
            assert without_times(normal) == speed_up(ranks, *NORMAL_EAGER, tokens)
            assert not low or without_times(low) == speed_up(ranks, *LOW_LATENCY_EAGER, tokens)


def test_times_in_the_manual():
    rows, found = rows_behind("docs/moe.md", "**Beside DeepEP v1.2.1**"), medians(4)
    said = [re.findall(r"(\d+) us", " ".join(row)) for row in rows]
    (normal, _), (low, _) = NORMAL_EAGER, LOW_LATENCY_EAGER
    assert said[1] == [f"{found[case][128]:.0f}" for case in LOW_LATENCY]
    assert said[3] == [f"{found[case][1]:.0f}" for case in (low, normal)]
    assert said[4] == [f"{found[case][128]:.0f}" for case in (low, normal)]


def test_moe_in_the_readme():
    dispatch, combine = (in_graphs(4, 128, case) for case in LOW_LATENCY)
    large, few = (speed_up(4, *NORMAL_EAGER, tokens) for tokens in (4096, 128))
    eight = speed_up(8, *NORMAL_EAGER, 4096)
    text = words_of("README.md")
    assert f"in graphs {dispatch} (dispatch) and {combine} (combine)" in text
    assert f"{large} of 4096 tokens, **{few}** of 128; on eight H200 **{eight}** of 4096" in text


def test_nodes_of_cpus():
    rows = rows_behind("docs/measured/nodes.md", "Recorded on two cores")[1:]
    verdicts = record("nodes_cpu")["verdict"]
    assert len(rows) == len(verdicts)
    for row, one in zip(rows, verdicts, strict=True):
        assert row[1:] == [
            str(one["bytes"] >> 20),
            f"{one['cable_of_model']:.3f}",
            f"{one['time_of_bytes_by_rate']:.2f}",
            f"{one['flat_by_staged']:.2f}",
            f"{one['gloo_by_staged']:.2f}",
        ]


def test_nodes_of_cpus_in_the_manual():
    verdicts = record("nodes_cpu")["verdict"]
    text = words_of("docs/nodes.md")

    def spread(name: str, places: int) -> str:
        values = [one[name] for one in verdicts]
        return f"{min(values):.{places}f} to {max(values):.{places}f}"

    assert f"bytes on the cable {spread('cable_of_model', 3)} of the [formula]" in text
    assert f"time {spread('time_of_bytes_by_rate', 2)} of bytes by rate" in text
    assert f"{spread('flat_by_staged', 2)} times as fast as straight" in text
    for op in ("all_gather", "reduce_scatter", "all_reduce"):
        beside = [f"{one['gloo_by_staged']:.2f}" for one in verdicts if one["op"] == op]
        assert f"{op} {' and '.join(beside)}" in text


def test_programs_over_nodes():
    text = words_of("docs/measured/nodes.md")
    found = record("nodes_programs")
    programs, failures = found["programs"], found["failures"]
    assert f"{programs['programs']:,} programs ({programs['calls']:,} calls a rank" in text
    assert f"{programs['taken']:,} calls taken over, {programs['handed_on']:,} handed on" in text
    assert f"(the same record, of {failures['commit'][:8]}; " in text
    assert f"each of {failures['worlds']} worlds; in {failures['error_on_all']} all four" in text
    assert failures["left_to_the_programs_watchdog"] == 0
    assert f"{failures['most_s_to_the_last_rank']:.1f} s after the first at most" in text


@pytest.mark.parametrize("size", ["8 KiB", "64 KiB", "1 MiB"])
def test_pages_between_gpus(size):
    figures = record("engine_between_gpus")["figures"]
    found = rows_behind("docs/measured/engine.md", "Between two H200 over NVLink")
    rows = {row[0]: row[1:] for row in found}
    pages = f"pages {size} GPU to another GPU"
    others = ("one copy", "4 at a time, one copy", "Triton kernel", "cuMemcpyBatchAsync")
    names = (*others, "torch, gathered and copied")
    assert rows[size] == [f"{figures[f'{pages}, {name}']:.2f}" for name in names]


@pytest.mark.parametrize("size", ["8 KiB", "64 KiB", "1 MiB"])
def test_pages_on_one_gpu(size):
    found = record("engine_gpu")
    figures, rates = found["figures"], {one["group"]: one["gbps"] for one in braids(found)}
    rows = {row[0]: row[1:] for row in rows_behind("docs/engine.md", "Two processes on one H100")}
    ways = [f"pages {size} {way}" for way in ("GPU to the same GPU", "GPU to host", "host to GPU")]
    for cell, way, other in zip(
        (0, 2, 3), ways, ("Triton kernel", *["one pinned copy"] * 2), strict=True
    ):
        digits = 3 if way.endswith("GPU to host") else 2
        rate = f"{rates[way]:.0f}" if cell == 0 else f"{rates[way]:.1f}"
        said = f"{figures[f'{way}, {other}']:.{digits}f} ({rate} GB/s)"
        assert rows[size][cell] == f"{said}, {figures[f'{way}, 4 at a time, {other}']:.2f}"
    batched = figures[f"{ways[0]}, cuMemcpyBatchAsync"]
    assert rows[size][1] == (f"{batched:.0f}" if batched > 10 else f"{batched:.1f}")


def braids(found: Any) -> list[Any]:
    return [one for one in found["series"] if one["case"] == "braid"]


def test_a_watched_word():
    samples = sorted(record("engine_watch")["samples_us"])
    half, most = samples[len(samples) // 2], samples[len(samples) * 99 // 100]
    for page in ("docs/engine.md", "docs/measured/engine.md"):
        said = f"{half:.2f} us in the median, {most:.2f} us at 99 %"
        assert said in (ROOT / page).read_text()


def test_the_list_of_decisions_has_their_titles():
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"^- \[(.*?)\]\((.*?)\)$", (folder / "README.md").read_text(), re.MULTILINE)
    heads = {path.name: path.read_text().split("\n", 1)[0] for path in folder.glob("0*.md")}
    assert {name: f"# {title}" for title, name in listed} == heads
