"""Tables, plots and progress: what people see of a record, cell by cell."""

import io
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from rich.console import Console

from braid.bench.host import plot, table
from braid.bench.host.measure import LinkTotals, calls_for, samples_for, summarise
from braid.cases.host import Case, pattern
from braid.cases.operations import busbw_factor
from braid.cli.compare import _tables
from braid.errors import InvalidArgument
from braid.probe import picture
from braid.probe import table as probe_table
from braid.probe.compare import Row
from braid.probe.job import with_ranks
from braid.progress import Bar, choose
from braid.record.bench import (
    SCHEMA,
    Baseline,
    FabricLink,
    LinkUse,
    Record,
    Result,
    Samples,
    Versions,
    from_json,
    load,
)
from braid.record.parts import Host
from braid.record.probe import SCHEMA as PROBE
from braid.record.probe import ProbeRecord, Series, times_of
from braid.record.ranks import named, of_samples
from braid.terminal.columns import Column, tables
from braid.terminal.reporter import Bars, Lines, Reporter

HOST = Host("Xeon", 8, 64.0, "6.1")


def samples(us, by_rank=()):
    return Samples([us], us, us, us, us, list(by_rank))


def result(op="all_reduce", nbytes=1 << 20, us=1000.0, **changes):
    made = Result(
        op, nbytes, "float32", "sum", 1, 2, samples(us), 1.25, 1.875, 4096, 0,
        [LinkUse("shm", 0.75, 0.5), LinkUse("staged", 0.0, 0.0)],
        Baseline("gloo", samples(2 * us), 0), 2.0,
    )  # fmt: skip
    return replace(made, **changes)


def test_noisy_samples_are_marked_and_explained():
    """C38: above 5 %, standard deviation by mean."""
    noisy, quiet = summarise(np.array([100.0, 110.0, 90.0])), summarise(np.array([100.0, 101.0]))
    assert (noisy.variation, quiet.variation) == (0.1, 0.007)
    assert summarise(np.array([100.0])).variation is None
    text = shown(table.show, record(result(times=noisy, baseline=Baseline("gloo", quiet, 0))))
    assert "100.0~" in text
    assert "gloo 100.5 " in text
    assert "~ noisy: the samples vary by more than 5% (standard deviation by mean)" in text
    assert "~" not in shown(table.show, record(result(times=quiet, baseline=None)))


def record(*results, **changes):
    links = [FabricLink(name, name, 1.0, 900, "measured") for name in ("shm", "staged")]
    made = Record(
        SCHEMA, "braid bench", "2026-01-02T03:04:05+00:00", "abc", False, 4, False, "h1", links,
        {}, HOST, Versions("0.1", "3.11", "2.0", None, "Release", "avx2"), list(results),
    )  # fmt: skip
    return replace(made, **changes)


def shown(show, what):
    """The output, its cells by line."""
    out = io.StringIO()
    show(what, Console(file=out, width=200, highlight=False))
    return out.getvalue()


def cells(text, first):
    """The cells of the line whose first cell this is."""
    rows = (x for x in text.splitlines() if x.startswith("│"))
    line = next(x for x in rows if x.strip("│ ").startswith(first))
    return [cell.strip() for cell in line.strip("│").split("│")]


def heads(text):
    """Of the first table."""
    line = next(x for x in text.splitlines() if x.startswith("┃"))
    return [cell.strip() for cell in line.strip("┃").split("┃")]


def test_a_row_of_every_number():
    times = replace(samples(1000.0), p95_us=1001.0, p99_us=1002.0)
    text = shown(table.show, record(result(times=times, wire_gbps=1.5)))
    assert text.splitlines()[0].strip() == (
        "4 ranks, float32; medians of the slowest rank; bandwidths in GB/s;"
        " gain: baseline's time / braid's"
    )
    assert cells(text, "all_reduce") == [
        "all_reduce", "1 MiB", "1,000.0", "1,001.0", "1,002.0", "1.25", "1.88", "1.5",
        "75.0% 0.5 GB/s", "-", "gloo 2,000.0", "2.00x", "0",
    ]  # fmt: skip
    assert heads(text)[2:8] == ["p50 us", "p95 us", "p99 us", "algbw", "busbw", "wire"]


def test_what_was_not_measured_is_a_dash():
    bare = result(baseline=None, ratio=None, times=replace(samples(5.0), p99_us=None))
    row = cells(shown(table.show, record(bare)), "all_reduce")
    assert (row[2], row[3], row[4], row[10], row[11]) == ("5.0", "5.0", "-", "-", "-")


def test_the_wire_of_older_records_was_not_counted():
    """Their links' rates are by rank 0's own time, which is not that of the slowest rank."""
    assert cells(shown(table.show, record(result())), "all_reduce")[7] == "-"


def test_columns_without_room_go_on_below():
    """100 characters: no line is longer, no cell is cut, every part says which case it is."""
    out = io.StringIO()
    table.show(record(result(), result("reduce_scatter")), Console(file=out, width=100))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert text.count("reduce_scatter") == 2
    for name in ("p99 us", "wire", "shm", "staged", "baseline us", "wrong"):
        assert text.count(name) == 1
    assert heads(text)[:2] == ["op", "bytes"]


def test_columns_of_one_group_stay_together():
    keys = [Column("k", ["x"])]
    groups = [[Column(name * 4, ["1"]) for name in names] for names in ("ab", "cd", "e")]
    for width, parts in (
        (200, ["k aaaa bbbb cccc dddd eeee"]),
        (34, ["k aaaa bbbb cccc dddd", "k eeee"]),
        (32, ["k aaaa bbbb", "k cccc dddd eeee"]),
        (20, ["k aaaa bbbb", "k cccc dddd", "k eeee"]),
        (15, ["k aaaa", "k bbbb", "k cccc", "k dddd", "k eeee"]),
    ):
        found = [
            " ".join(str(column.header) for column in each.columns)
            for each in tables(keys, groups, width)
        ]
        assert found == parts


def test_words_go_on_below_and_numbers_stay_whole():
    """40 characters, which neither an operation's name nor two numbers have beside each other."""
    out = io.StringIO()
    keys = [Column("op", ["reduce_scatter"], is_number=False), Column("bytes", ["1.5 GiB"])]
    groups = [[Column("median us", ["123,456.7"]), Column("share", ["100.0% 0.0171 GB/s"])]]
    for table_ in tables(keys, groups, 40):
        Console(file=out, width=40).print(table_)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 40
    assert "…" not in text
    for whole in ("1.5 GiB", "123,456.7", "100.0% 0.0171 GB/s"):
        assert whole in text
    cells = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    names = "".join(cells)
    assert names == 2 * "reduce_scatter"


def test_a_comparison_fits_a_narrow_terminal():
    rows = [Row("all_reduce 64 KiB, nccl", "slower", 1234.8, 1234.9, 0.0, is_noisy=True)]
    out = io.StringIO()
    for part in _tables(rows, 40):
        Console(file=out, width=40).print(part)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 40
    assert "…" not in text
    for whole in ("1,234.8", "1,234.9", "+0.0%", "nccl", "slower", "spread"):
        assert whole in text


def test_wrong_bytes_of_both_are_added():
    bad = result(wrong_bytes=3, baseline=Baseline("gloo", samples(1.0), 4))
    assert cells(shown(table.show, record(bad)), "all_reduce")[-1] == "7"


def test_late_ranks_come_below_the_table():
    late = result(times=samples(1000.0, [10.0, 10.5, 10.9, 12.0]))
    text = shown(table.show, record(late))
    assert "all_reduce 1 MiB: rank 3 is late, 12.0 us" in text
    assert "rank 2 is late" not in text


def test_the_view_by_rank_of_braid_and_of_its_baseline():
    rows = [[10.0] * 20, [12.0] * 20]
    both = summarise(np.array(rows[1]), of_samples(rows))
    text = shown(table.show, record(result(times=both)))
    assert "all_reduce 1 MiB, braid" in text
    assert "all_reduce 1 MiB, gloo" not in text
    assert next(x for x in text.splitlines() if x.startswith("  rank 1")).split() == [
        "rank", "1", "12.0", "12.0", "20", "of", "20", "2.0",
    ]  # fmt: skip
    other = Baseline("gloo", both, 0)
    assert "all_reduce 1 MiB, gloo" in shown(table.show, record(result(baseline=other)))
    fair = summarise(np.array(rows[0]), of_samples([[10.0, 9.0] * 10, [9.0, 10.0] * 10]))
    plain = record(result(times=fair, baseline=None))
    assert "slowest" not in shown(table.show, plain).partition("GB/s")[2]
    asked = shown(lambda made, out: table.show(made, out, by_rank=True), plain)
    assert asked.count("10 of 20") == 2


def test_records_come_back_as_they_were(tmp_path):
    made = record(result(), result("broadcast", 64, baseline=None), stopped="interrupted")
    path = tmp_path / "a" / "b" / "r.json"
    made.save(path)
    assert load(path) == made
    text = path.read_text()
    assert text.endswith("}\n")
    assert text.splitlines()[1] == f' "schema": "{SCHEMA}",'
    with pytest.raises(ValueError, match=r"record\.schema: asked for braid.bench/1, found x"):
        from_json({**json.loads(text), "schema": "x"})


def test_fields_of_older_records_have_defaults():

    document = asdict(record(result()))
    for name in ("balance_log", "stopped"):
        del document[name]
    del document["host"]["num_hosts"]
    for times in (document["results"][0]["times"], document["results"][0]["baseline"]["times"]):
        del times["p99_us"], times["by_rank_us"], times["by_rank"]
    old = from_json(json.loads(json.dumps(document)))
    assert (old.stopped, old.balance_log, old.host.num_hosts) == ("", [], 1)
    assert old.results[0].times.p99_us is None
    table.show(old, Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([result()], "braid on 4 ranks, 1 MiB, float32"),
        ([result(), result("broadcast")], "braid on 4 ranks, 1 MiB, float32"),
        ([result(nbytes=1 << k) for k in (10, 20, 30)], "4 ranks, 1 KiB to 1 GiB, float32"),
    ],
)
def test_plots_say_what_they_show(results, words, tmp_path):
    made = record(*results)
    assert words in plot._title(made)
    assert plot._title(replace(made, paced=True)).endswith("(links paced on purpose)")
    plot.save(made, tmp_path / "p.svg")
    drawn = (tmp_path / "p.svg").read_text()
    assert drawn.startswith("<?xml")
    assert "2026-01-02T03:04:05" in drawn


def test_operations_in_order_of_size():
    made = record(result(nbytes=64), result("broadcast", 8), result(nbytes=16))
    found = {op: [r.bytes for r in rows] for op, rows in plot._by_op(made).items()}
    assert found == {"broadcast": [8], "all_reduce": [16, 64]}


def series(case, us=10.0, gbps=5.0, **changes):
    start, _, end = case.partition(">")
    made = Series("one way", case, 1 << 20, times_of([us]), gbps, start=start, end=end)
    return replace(made, **changes)


def probe(kind, *rows, **changes):
    made = ProbeRecord(
        PROBE, kind, "braid bench", "2026-01-02T03:04:05+00:00", "abc", False, "2 x H200", 0,
        HOST, {}, {}, {}, list(rows),
    )  # fmt: skip
    return replace(made, **changes)


def test_a_matrix_of_pairs_counts_by_number():
    rows = [series("gpu2>gpu10", gbps=376.54), series("gpu10>gpu2", gbps=1.5, verdict="slow")]
    rows.append(series("gpu2>gpu3", gbps=None, times=None, verdict="hang"))
    text = shown(probe_table.show, probe("p2p", *rows))
    assert text.splitlines()[0].startswith("p2p on 2 x H200; GB/s = 1e9 bytes/s")
    assert cells(text, "gpu2 ")[1:] == ["", "hang", "376.5"]
    assert cells(text, "gpu10")[1:] == ["1.5-", "", ""]
    assert probe_table.LEGEND in text
    assert "3 cases, 0 wrong bytes" in text


def test_latencies_are_times():
    rows = [series("gpu0>gpu1", 2.75, None), series("gpu1>gpu0", 3.25, None)]
    assert probe_table.title("latency", rows) == "latency, 1 MiB, us"
    assert cells(shown(probe_table.show, probe("p2p", *rows)), "gpu0")[1:] == ["", "2.75"]


def test_rows_and_remarks():
    rows = [
        series("a", 1234.5, 5.0, wire_gbps=2.5, by_rank_us={"rank 0": 1.0, "rank 1": 1.5,
                                                           "rank 2": 1.0}),
        series("b", gbps=None, times=None, verdict="failed", note="no room", wrong_bytes=2),
    ]  # fmt: skip
    made = probe("latency", *rows, ranks=3, figures={"gain": 1.23456}, stopped="interrupted")
    text = shown(probe_table.show, made)
    assert "latency on 2 x H200, 3 ranks" in text
    assert cells(text, "one way")[1:] == [
        "a", "1 MiB", "1,234.5", "1,234.5", "1,234.5", "5", "2.5", "",
    ]  # fmt: skip
    for words in (
        "gain: 1.235", "one way a: rank 1 is late, 1.5 us", "one way b: failed: no room",
        "2 cases, 2 wrong bytes", "stopped: interrupted",
    ):  # fmt: skip
        assert words in text


def test_the_view_by_rank_of_calls_and_lanes():
    rows = [[10.0] * 20, [12.0] * 20]
    one = with_ranks(replace(series("a"), times=times_of(rows[1])), named(of_samples(rows)))
    text = shown(probe_table.show, probe("latency", one, ranks=2))
    assert "one way a" in text
    assert "20 of 20" in text
    fair = named(of_samples([[10.0, 9.0] * 10, [9.0, 10.0] * 10]))
    assert "slowest" not in shown(probe_table.show, probe("latency", with_ranks(one, fair)))


@pytest.mark.parametrize("kind", ["p2p", "host"])
@pytest.mark.parametrize("gbps", [5.0, None])
@pytest.mark.parametrize("groups", [1, 4])
def test_pictures_of_every_kind(kind, gbps, groups, tmp_path):
    rows = [series(case, gbps=gbps, group=f"g{i}")
            for i in range(groups) for case in ("gpu0>gpu1", "gpu1>gpu0")]  # fmt: skip
    rows.append(series("gpu0>gpu2", gbps=None, times=None, verdict="hang"))
    picture.save(probe(kind, *rows), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("name", "order"), [("gpu10", ("gpu", 10)), ("gpu", ("gpu", 0)), ("mlx5_0", ("mlx5_", 0))]
)
def test_names_with_numbers(name, order):
    assert probe_table.by_number(name) == order


def test_a_bar_of_tuning(capsys):
    bar = Bar()
    for done, filled, part in ((-1.0, 0, "]   0%"), (0.5, 14, "]  50%"), (1.0, 28, "100%")):
        bar(done, "shm")
        said = capsys.readouterr().err
        assert f"[{'#' * filled}{'.' * (28 - filled)}]" in said
        assert part in said
    assert said.endswith("\r\x1b[K")


def test_which_progress(monkeypatch):
    def own(done, what):
        raise AssertionError((done, what))

    assert choose(own) is own
    assert isinstance(choose(True), Bar)
    assert choose(False) is choose(None) is None
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda found=is_terminal: found, raising=False)
        assert isinstance(choose("auto"), Bar) is is_terminal
    for bad in ("yes", 3):
        with pytest.raises(InvalidArgument, match="init: argument progress: asked for 'auto'"):
            choose(bad)


def test_only_rank_0_reports(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert type(Reporter.for_this_rank()) is Reporter
    monkeypatch.setenv("RANK", "0")
    assert isinstance(Reporter.for_this_rank(), Lines | Bars)


def test_lines_name_the_case(capsys):
    case = Case("all_reduce", 256, np.dtype("float32"), "sum", 0, 4)
    with Lines() as lines:
        lines.start(2)
        for count in (9, 3):
            lines.say(case.name, "checking")
            lines.expect(count)
            lines.step(case.name, "sample")
            lines.case_done()
    assert capsys.readouterr().err.splitlines() == [
        "case 1 of 2: all_reduce 1 KiB: 9 samples",
        "case 2 of 2: all_reduce 1 KiB: 3 samples",
    ]


def test_bars_take_every_step():
    """On a terminal; nothing is left of them."""
    case = Case("broadcast", 8, np.dtype("int8"), "sum", 0, 2)
    with Bars() as bars:
        bars.step(case.name, "before the start")
        bars.tuning(0.5, "shm")
        bars.tuning(1.0, "shm")
        bars.start(2)
        bars.say(case.name, "checking")
        bars.expect(4)
        for _ in range(4):
            bars.step(case.name, "timing")
        (task,) = bars._progress.tasks
        assert (task.completed, task.total) == (1.0, 2.0)
        assert task.description == "broadcast 8 B: timing"
        bars.case_done()


def test_links_by_the_time_of_whole_calls():
    totals = LinkTotals()
    assert totals.uses() == []
    for sent, received, share in ((3000, 1000, 0.5), (1000, 5000, 0.75)):
        link = {"name": "shm", "sent_bytes": sent, "received_bytes": received, "share": share}
        totals.add({"duration_ns": 1000, "links": [link]})
    (use,) = totals.uses()
    assert (use.name, use.share, use.rate_gbps) == ("shm", 0.75, (3000 + 5000) / 2000)


def test_the_wire_carries_all_links_bytes_of_a_call():
    """Counted over the calls that were looked at: not a formula's."""
    totals = LinkTotals()
    assert totals.wire_gbps(1.0) is None
    for sent, received in ((3000, 1000), (1000, 5000)):
        links = [
            {"name": name, "sent_bytes": times * sent, "received_bytes": received, "share": 0.5}
            for name, times in (("shm", 1), ("staged", 2))
        ]
        totals.add({"duration_ns": 1000, "links": links})
    assert totals.wire_gbps(2.0) == (3000 + 5000 + 6000 + 5000) / 2 / 2.0 / 1e3


def test_samples_are_kept_and_summed_up():

    made = summarise(np.arange(101.0)[::-1] + 0.00049, of_samples([[1.23456]]))
    assert (made.p5_us, made.median_us, made.p95_us, made.p99_us) == (5.0, 50.0, 95.0, 99.0)
    assert (made.samples_us[0], made.samples_us[-1]) == (100.0, 0.0)
    assert made.by_rank_us == [1.235]


def test_efforts_keep_to_their_limits():
    found = [calls_for(ns) for ns in (0.0, 1.0, 1e5, 1e12)]
    assert found[0] == found[1] == max(found)
    assert found[-1] == 1
    assert found == sorted(found, reverse=True)
    assert samples_for(0.0, 1e9, 20) <= 20
    assert samples_for(1e12, 1.0, 20) == 20
    assert samples_for(0.0, 1e9, 1) == 1


def test_bus_factors_are_those_of_plan():
    from braid.plan.formulas.collectives import bus_factor

    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        for ranks in (2, 3, 8):
            assert busbw_factor(op, ranks) == bus_factor(op, ranks)


def test_products_stay_small():

    data = pattern(3, 5000, np.dtype("int8"), "prod")
    assert set(data.tolist()) == {1, 2}
    assert set(pattern(3, 5000, np.dtype("int8")).tolist()) == set(range(-4, 4))
