"""Records of the GPU benchmark, what they say, and the figures that come of them."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from gpu_fakes import record, repeats, result
from matplotlib import pyplot
from rich.console import Console

from braid.bench import blocks, curves, flexlink, gpu_table, rates
from braid.bench.flexlink_rows import rows
from braid.bench.suite import beside, rank_counts, show
from braid.bench.verdict import judge, wrong_bytes
from braid.cases.operations import OPS
from braid.ratio import interval, interval_words, part_words, ratio_words, verdict
from braid.record import gpu as gpu_record
from braid.record import old_gpu as old_gpu_record
from braid.record.ranks import of_samples

REPOSITORY = Path(__file__).parents[2]
LARGE = flexlink.LARGE


def test_round_trip_and_errors(tmp_path):
    made = record([result("all_gather", 1024, braid=2.0, nccl=4.0)], repeats=[repeats()])
    made.save(tmp_path / "deep" / "r.json")
    assert gpu_record.load(tmp_path / "deep" / "r.json") == made
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["r.json"]
    document = json.loads((tmp_path / "deep" / "r.json").read_text())
    for change, words in (
        ({"ranks": "2"}, "record.ranks: asked for int"),
        ({"schema": "braid.gpu/1"}, "record.schema: asked for braid.gpu/2"),
        ({"surprise": 1}, "no other fields"),
        ({"results": [{}]}, r"record.results\[0\]: asked for the fields"),
    ):
        with pytest.raises(ValueError, match=words):
            gpu_record.from_json({**document, **change})


def test_published_schema_is_current():
    published = json.loads((REPOSITORY / "docs/gpu_record.schema.json").read_text())
    assert published == gpu_record.FORM.json_schema(), (
        "run: python -m braid.record.gpu > docs/gpu_record.schema.json"
    )
    assert {"Run", "RankTimes", "GpuResult", "Host", "Repeats"} == published["$defs"].keys()


def test_statistics_keep_every_sample():
    run = gpu_record.make_run("x", "nccl", [float(i) for i in range(101)], lambda us: 100 / us, 3)
    assert (run.median_us, run.p5_us, run.p95_us, run.busbw_gbps) == (50, 5, 95, 2)
    assert len(run.samples_us) == 101
    assert run.wrong == 3


def test_the_old_form_is_read_as_todays():
    document = {
        "schema": "braid.gpu/1", "command": "braid run -n 2 bench.py --graph", "date": "2026",
        "commit": "abc", "dirty": False, "gpu": "NVIDIA H200", "cuda": "13.0", "torch": "2.11.0",
        "nccl": "2.28.9", "options": {}, "ranks": 2,
        "results": [
            {"op": "all_gather", "bytes": 64, "who": "nccl", "samples_us": [3, 1, 2], "wrong": 0},
            {"op": "all_gather", "bytes": 64, "who": "braid", "samples_us": [1], "wrong": 0},
        ],
    }  # fmt: skip
    (result,) = old_gpu_record.read(document).results
    assert (result.op, result.bytes, result.total_bytes, result.mode) == (
        "all_gather",
        64,
        128,
        "graph",
    )
    assert judge(result).to_nccl == 2
    today = record([result])
    assert old_gpu_record.read(json.loads(json.dumps(asdict(today)))) == today


@pytest.mark.parametrize("path", sorted((REPOSITORY / "records").glob("gpu_*.json")))
def test_every_committed_gpu_record_is_read(path):
    made = old_gpu_record.read(json.loads(path.read_text()))
    assert all(judge(result).to_nccl for result in made.results)
    assert wrong_bytes(made.results) == 0


def test_ratios_to_default_best_and_all():
    both = judge(result("all_reduce", 8, braid=10, nccl=20, nccl_symmetric=15, symm_one_shot=12))
    assert (both.to_nccl, both.to_nccl_best, both.nccl_best) == (2, 1.5, "nccl symmetric")
    assert (both.to_others, both.fastest_other) == (1.2, "symm one shot")
    slower = judge(result("all_reduce", 8, braid=10, nccl=20, nccl_symmetric=25))
    assert (slower.to_nccl_best, slower.nccl_best) == (2, "nccl")  # the default counts too
    lonely = judge(result("all_reduce", 8, braid=10))
    assert (lonely.to_nccl, lonely.to_nccl_best, lonely.fastest_other) == (None, None, "")
    wrong = judge(result("all_reduce", 8, wrong=5, braid=10, nccl=20))
    assert wrong.to_nccl is None  # the time of a wrong result is no time


def test_wrong_results_of_others_are_no_baseline():
    made = result("all_reduce", 8, braid=10, nccl=20, nccl_symmetric=5)
    runs = [replace(r, wrong=1) if r.who == "nccl symmetric" else r for r in made.runs]
    assert judge(replace(made, runs=runs)).to_nccl_best == 2
    assert wrong_bytes([replace(made, runs=runs)]) == 1


def good_record(ranks=4):
    """Every figure reached."""
    large = [
        result(op, LARGE, host_share=0.1, braid=100, nccl=200, nccl_32_ctas=190,
               braid_nvlink=112, braid_host=1000)
        for op in OPS
    ]  # fmt: skip
    middle = [result(op, n, braid=10, nccl=12) for op in OPS for n in flexlink.MIDDLE]
    small = [
        result(op, n, "graph", braid=5, nccl=10, nccl_symmetric=9, symm_two_shot=8)
        for op in flexlink.SMALL_OPS
        for n in flexlink.SMALL
    ]
    return record([*large, *middle, *small], ranks, [repeats()], blocks={"all_gather": 16})


def test_every_row_of_a_good_record_is_reached():
    held = [result(op, LARGE, braid=100, braid_nvlink=130) for op in flexlink.CAPPED_OPS]
    found = rows(good_record(), record(held))
    by_verdict = {
        verdict: [r for r in found if r.is_reached is verdict] for verdict in (True, False)
    }
    assert not by_verdict[False]
    assert len(by_verdict[True]) == 5 + 1 + 5 + 1 + 2 + 1 + 3 + 1 + 1 + 1
    missing = [row for row in found if row.is_reached is None]
    assert len(missing) == 4  # MSCCL++ three times, and all_reduce's blocks


def test_rows_say_what_was_not_reached():
    made = good_record(2)
    results = [r for r in made.results if (r.op, r.mode) != ("broadcast", "eager")]
    results.append(
        result("broadcast", LARGE, braid=100, nccl=110, braid_nvlink=100, braid_host=900)
    )
    results.append(result("broadcast", 16 << 20, braid=10, nccl=9))
    found = {
        row.work: row for row in rows(replace(made, results=results, repeats=[repeats(1000, 2)]))
    }
    assert not found["broadcast 256 MiB against NCCL's default"].is_reached
    assert found["broadcast 256 MiB against NCCL's default"].reached == "1.10x"
    middle = found["16 MiB and 64 MiB, every operation, against NCCL's default"]
    assert (middle.is_reached, middle.reached) == (
        False,
        "0.90x at the least (broadcast 16 MiB eager)",
    )
    worst = next(row for work, row in found.items() if work.startswith("never worse"))
    assert not worst.is_reached
    bits = found["bits of a float sum, random shares in every call"]
    assert (bits.is_reached, bits.reached) == (False, "2 of 1000 calls differ")
    of_sum = found["broadcast 256 MiB: of the sum of both links, each alone in the same run"]
    assert (of_sum.is_reached, of_sum.reached) == (False, "90.0%")


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(0.998, "0.998x"), (0.99999, "0.999x"), (0.9957, "0.995x"), (0.994, "0.99x"), (1.0, "1.00x")],
)
def test_a_loss_never_reads_as_equal(ratio, words):
    assert ratio_words(ratio) == words
    assert [verdict(one) for one in (0.97, 0.985, 1.015, 1.03)] == [
        "slower", "equal", "equal", "faster"
    ]  # fmt: skip
    assert part_words(1.0001) == "1.001x"
    assert [part_words(part) for part in (0.998, 1.0, 1.02)] == ["1.00x", "1.00x", "1.02x"]


def test_nccls_default_is_its_best_where_it_came_alone():
    made = good_record(2)
    huge = result("all_reduce", flexlink.HUGE, braid=10.02, nccl=10)
    found = rows(replace(made, results=[*made.results, huge]))
    best = next(row for row in found if "NCCL at its best" in row.work)
    assert best.reached == "0.998x at the least (all_reduce 1 GiB eager)"
    assert best.work.endswith("(of 16 MiB, 64 MiB, 1 GiB its default alone)")
    assert best.ratio == pytest.approx(0.998, abs=1e-4)


def test_rows_of_an_empty_record_measure_nothing():
    found = rows(record([]))
    assert all(row.is_reached is None for row in found)
    assert all(row.reached.startswith("not measured: ") for row in found)


def test_a_host_link_that_was_not_alone_is_no_measurement():
    large = result("all_gather", LARGE, braid=100, braid_nvlink=110, braid_host=120)
    found = {row.work: row for row in rows(record([large]))}
    of_sum = found["all_gather 256 MiB: of the sum of both links, each alone in the same run"]
    assert of_sum.is_reached is None
    assert found["all_gather 256 MiB: host link added to NVLink alone"].reached == "+10.0%"


def test_a_best_that_was_not_there_is_no_best():
    small = [
        result("all_gather", n, "graph", braid=5, nccl=10, symm_copies=9) for n in flexlink.SMALL
    ]
    row = next(row for row in rows(record(small)) if row.work.startswith("all_gather 1 KiB"))
    assert row.is_reached is None
    assert row.reached.endswith("; without NCCL's other settings")


def test_a_rank_count_without_figures_only_reports():
    found = rows(good_record(6))
    assert found[0].required == "no figure"
    assert found[0].reached == "2.00x"


def test_figures_cover_the_issue_for_every_rank_count():
    assert set(flexlink.LARGE_AIMS) == set(OPS)
    for aims in (
        *flexlink.LARGE_AIMS.values(),
        flexlink.ADDED_AIMS,
        *flexlink.CAPPED_AIMS.values(),
    ):
        assert set(aims) == set(flexlink.RANK_COUNTS)
    tasks = flexlink.tasks(frozenset({"nccl", "nccl-best", "symm"}))
    keys = [(task.op, task.own_bytes, task.mode) for task in tasks]
    assert len(keys) == len(set(keys))
    assert {op for op, *_ in keys} == set(OPS)
    small = [task for task in tasks if task.op in flexlink.SMALL_OPS and task.mode == "graph"]
    assert len(small) == 3 * 13
    assert all("symm" in task.groups for task in small)
    assert all(not task.groups for task in flexlink.tasks(frozenset()) if task.mode == "graph")


def test_paths_and_rank_counts_of_the_suite():
    assert beside(Path("records/f.json"), 4) == Path("records/f_4.json")
    assert beside(Path("f.json"), 2, "_held") == Path("f_2_held.json")
    assert rank_counts(0, 4) == [2, 4]
    assert rank_counts(0, 8) == [2, 4, 8]
    assert rank_counts(3, 4) == [3]


def test_tables_and_plot(tmp_path, capsys):
    made = replace(good_record(), options={"BRAID_LINK_CAP": "nvlink:147"})
    absent = replace(made.results[0], absent={"symm copies": "it is not there"})
    made = replace(made, results=[absent, *made.results[1:]])
    gpu_table.show(made)
    show(rows(made))
    said = capsys.readouterr().out
    for words in (
        "HELD to nvlink:147", "4 x NVIDIA H200", "2.00x", "32 ctas", "two shot", "10.0%",
        "without symm copies: it is not there", "1000 calls, 0 with other bits", "reached",
    ):  # fmt: skip
        assert words in said
    curves.save(made, tmp_path / "r.svg")
    drawn = (tmp_path / "r.svg").read_text()
    assert drawn.lstrip().startswith("<?xml")
    curves.save(record([result("all_gather", 8, braid=1.0)]), tmp_path / "one.svg")


def test_a_nic_is_named_beside_the_host_link(capsys):
    alone = result("all_gather", LARGE, host_share=0.1, braid=100, nccl=200)
    gpu_table.show(record([alone]))
    assert " + " not in capsys.readouterr().out
    gpu_table.show(record([replace(alone, rdma_share=0.05)]))
    assert "10.0% + 5.0%" in capsys.readouterr().out


def test_the_wire_beside_bus_bandwidth(capsys):
    """NCCL may have added in the switch, for all that we know; unless it was told not to."""
    results = [result("all_reduce", 1 << 20, braid=1.0, nccl=2.0)]  # 500 GB/s as times are told
    gpu_table.show(record(results, ranks=8))
    assert ">=321.4" in capsys.readouterr().out
    gpu_table.show(record(results, ranks=8, options={"NCCL_NVLS_ENABLE": "0"}))
    assert ">=" not in capsys.readouterr().out


def test_a_record_says_every_bandwidth():
    """NCCL's all_reduce on 8 GPUs: 500 of bus bandwidth are 321.4 on the wire (F17)."""
    made = record([result("all_reduce", 1 << 20, braid=1.0, nccl=2.0)], ranks=8)
    assert [run.wire_gbps for run in made.results[0].runs] == [None, None]
    ours, nccl = rates.with_rates(made).results[0].runs
    assert (ours.algbw_gbps, ours.wire_gbps) == (1048.576, ours.busbw_gbps)
    assert (nccl.algbw_gbps, nccl.wire_gbps) == (524.288, 321.429)
    held = rates.with_rates(replace(made, options={"NCCL_ALGO": "Ring"}))
    assert held.results[0].run_of("nccl").wire_gbps == 500.0


def test_only_what_may_have_been_added_is_a_bound():
    """Bus bandwidths of tables by others have digits of their own."""
    made = record([result("all_gather", 1 << 20, nccl=2.0)], ranks=8)
    run = replace(made.results[0].runs[0], busbw_gbps=361.43219)
    assert rates.wire_text(run, made.results[0], made) == "361.4"
    assert rates.wire_text(run, replace(made.results[0], op="all_reduce"), made) == ">=232.3"


def rows_of_everybody(text):
    return {
        line.strip().split("  ")[0]: line.split()[-8:]
        for line in text.splitlines()
        if line.startswith("  ")
    }


def test_everybody_s_times_and_bandwidths():
    samples = [float(us) for us in range(1, 102)]
    run = gpu_record.make_run("nccl", "nccl", samples, lambda us: 700 / us, 3)
    made = result("all_reduce", 1 << 20, "graph", braid=1.0)
    out = io.StringIO()
    gpu_table.show(
        record([replace(made, runs=[*made.runs, run])], ranks=8), Console(file=out, width=200)
    )
    text = out.getvalue()
    heads = next(line for line in text.splitlines() if line.startswith("case, contestant"))
    words = "case, contestant samples p50 us p95 us p99 us algbw busbw wire wrong"
    assert " ".join(heads.split()) == words
    assert "all_reduce 1 MiB graph" in text
    found = rows_of_everybody(text.replace("WRONG 3", "WRONG_3"))
    assert found["nccl"] == ["101", "51.0~", "96.0", "100.0", "20.6", "13.7", ">=8.8", "WRONG_3"]
    assert found["braid"] == ["3", "1.0", "1.0", "1.0", "1048.6", "1000.0", "1000.0", "0"]


def test_gpu_tables_fit_a_terminal_of_100_characters():
    out = io.StringIO()
    gpu_table.show(good_record(), Console(file=out, width=100))
    text = out.getvalue()
    tables = [line for line in text.splitlines() if line[:1] in "┃│" or line.startswith("  ")]
    assert max(map(len, tables)) <= 100
    assert "…" not in text
    for name in ("braid us", "nccl us", "nccl's best us", "symm us", "samples", "p99 us"):
        assert text.count(name) == 1


def test_a_curve_above_the_wire_has_the_wire_below():
    sizes = [1 << 20, 1 << 24]
    gathered = [result("all_gather", n, braid=1.0, nccl=2.0) for n in sizes]
    reduced = [result("all_reduce", n, braid=1.0, nccl=2.0) for n in sizes]
    for options, is_drawn in (({}, True), ({"NCCL_NVLS_ENABLE": "0"}, False)):
        made = record([*gathered, *reduced], ranks=8, options=options)
        drawn = curves.figure_of(made)
        lines = [
            (axes.get_title(loc="left"), list(line.get_ydata()))
            for axes in drawn.axes
            for line in axes.get_lines()
            if line.get_linestyle() == ":"
        ]
        wire = 500 * 9 / 14
        assert lines == ([("all-reduce", pytest.approx([wire, wire]))] if is_drawn else [])
        names = [text.get_text() for text in drawn.legends[0].get_texts()]
        assert ("on the wire, at the least" in names) is is_drawn
        pyplot.close(drawn)


def test_late_ranks_are_named(capsys):
    made = record([result("all_reduce", 1 << 20, braid=1.0)])
    late = replace(made.results[0].runs[0], by_rank_us=[1.0, 1.0, 1.5])
    gpu_table.show(replace(made, results=[replace(made.results[0], runs=[late])]))
    assert "rank 2 is late, 1.5 us" in capsys.readouterr().out


def test_the_view_by_rank_of_a_gpu_run():
    rows = [[10.0] * 9, [12.0] * 9]
    run = gpu_record.make_run("nccl", "nccl", rows[1], lambda us: 1 / us, 0, of_samples(rows))
    assert run.by_rank_us == [10.0, 12.0]
    made = record([replace(result("all_reduce", 1 << 20), runs=[run])], ranks=2)
    for by_rank, samples, is_shown in ((False, 9, True), (False, 5, False), (True, 5, True)):
        cut = replace(
            run,
            samples_us=run.samples_us[:samples],
            by_rank=of_samples([row[:samples] for row in rows]),
        )
        out = io.StringIO()
        one = replace(made.results[0], runs=[cut])
        gpu_table.show(replace(made, results=[one]), Console(file=out, width=100), by_rank=by_rank)
        text = out.getvalue()
        assert ("all_reduce 1 MiB eager, nccl" in text) is is_shown
        assert (f"{samples} of {samples}" in text) is is_shown


def test_busiest_moment_of_a_trace():
    def kernel(begin, length, grid):
        return {"cat": "kernel", "ts": begin, "dur": length, "args": {"grid": grid}}

    other = {"cat": "cpu_op", "ts": 0, "dur": 9}
    events = [kernel(0, 10, [8, 1, 1]), other, kernel(5, 10, [4, 2, 1]), kernel(10, 1, [8, 1, 1])]
    assert blocks.busiest(events) == 16
    assert blocks.busiest([other]) is None


def test_what_noise_explains_is_neither_faster_nor_slower():
    quiet, noisy = (
        [100.0, 101.0, 99.0, 100.5, 100.0, 99.5],
        [80.0, 130.0, 95.0, 140.0, 100.0, 118.0],
    )
    found = interval(noisy, quiet)
    assert found is not None
    assert found[0] < 1 < found[1]
    assert verdict(1.09, found) == "unclear"
    assert verdict(1.01, found) == "unclear"  # too wide to call it equal
    assert verdict(0.91, interval(quiet, noisy)) == "unclear"


@pytest.mark.parametrize(("factor", "word"), [(1.2, "faster"), (1.004, "equal"), (0.8, "slower")])
def test_what_is_sure_is_said(factor, word):
    ours = [100.0 + 0.1 * i for i in range(12)]
    theirs = [factor * us for us in ours]
    low, high = interval(theirs, ours)
    assert low < factor < high < low + 0.02
    assert verdict(factor, (low, high)) == word


def test_an_interval_is_the_same_every_time_and_needs_two_samples():
    a, b = [3.0, 5.0, 4.0, 9.0], [2.0, 2.5, 2.25, 2.75]
    assert interval(a, b) == interval(list(a), tuple(b))
    assert interval([1.0], b) is interval(a, [1.0]) is None
    assert interval_words(None) == ""
    assert interval_words((1.0649, 1.111)) == "[1.06, 1.11]"


def test_medians_of_95_in_100_experiments_are_inside():
    """Of samples whose medians are known: 1 and 1.1."""
    rng = np.random.default_rng(421)
    inside = 0
    for _ in range(200):
        theirs, ours = rng.normal(1.1, 0.1, 15), rng.normal(1.0, 0.1, 15)
        low, high = interval(theirs.tolist(), ours.tolist())
        inside += low <= 1.1 <= high
    assert 180 <= inside <= 199
