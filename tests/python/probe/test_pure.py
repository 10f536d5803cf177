"""Statistics, outliers, the wire, traces, efforts: what needs no lane and no rank."""

import json
from pathlib import Path

import pytest
from probe_fakes import Clock

from braid.bench.wire import may_be_nvls, wire_gbps
from braid.errors import InvalidArgument
from braid.probe.effort import Effort, calls_for
from braid.probe.lane import places
from braid.probe.outliers import marked
from braid.probe.trace import read
from braid.record import probe as records
from braid.record.probe import Series, times_of
from braid.record.ranks import stragglers

REPOSITORY = Path(__file__).parents[3]


def test_percentiles():
    times = times_of([float(i) for i in range(101)])
    assert (times.p5_us, times.p50_us, times.p95_us, times.p99_us) == (5, 50, 95, 99)
    assert times_of([3.0]).p99_us == 3
    assert times_of([4.0, 2.0]).samples_us == [4, 2]


def test_outliers_of_the_published_h100_matrix():
    """All cells near 376.5 GB/s but five, which lie more than 3 % from the median."""
    odd = {(0, 1): 364.13, (2, 0): 363.43, (2, 1): 393.28, (3, 2): 393.63, (4, 3): 393.52}
    series = [
        Series("one way", f"{a}>{b}", 1, times_of([1.0]), odd.get((a, b), 376.2 + (a - b) / 4))
        for a in range(8)
        for b in range(8)
        if a != b
    ]
    found = {one.case: one.verdict for one in marked(series) if one.verdict != "ok"}
    assert found == {"0>1": "slow", "2>0": "slow", "2>1": "fast", "3>2": "fast", "4>3": "fast"}


def test_what_went_wrong_is_no_outlier():
    bad = Series("one way", "0>1", 1, None, None, verdict="hang")
    good = [Series("one way", f"{i}", 1, times_of([1.0]), 10.0) for i in range(3)]
    assert [one.verdict for one in marked([bad, *good])] == ["hang", "ok", "ok", "ok"]
    assert marked(good[:2]) == good[:2]  # two have no median to be far from


def test_stragglers():
    assert stragglers({"rank 0": 10.0, "rank 1": 10.2, "rank 2": 13.0}) == ["rank 2"]
    assert stragglers({"rank 0": 10.0}) == []


@pytest.mark.parametrize(
    ("op", "ranks", "who", "options", "nvls"),
    [
        ("all_reduce", 8, "nccl", {}, True),
        ("all_reduce", 8, "nccl symmetric", {"NCCL_ALGO": "NVLS"}, True),
        ("all_reduce", 8, "nccl", {"NCCL_ALGO": "Ring"}, False),
        ("all_reduce", 8, "nccl", {"NCCL_NVLS_ENABLE": "0"}, False),
        ("all_reduce", 2, "nccl", {}, False),
        ("all_gather", 8, "nccl", {}, False),
        ("all_reduce", 8, "braid", {}, False),
    ],
)
def test_who_may_add_in_the_switch(op, ranks, who, options, nvls):
    assert may_be_nvls(op, ranks, who, options) is nvls


def test_nothing_reads_as_faster_than_the_wire():
    """F17: bus bandwidth 480 over links of 450 GB/s are 308.6 on the wire."""
    assert wire_gbps("all_reduce", 8, 480.0, nvls=True) == pytest.approx(308.6, abs=0.05)
    assert wire_gbps("all_reduce", 8, 360.0, nvls=False) == 360
    assert wire_gbps("all_gather", 8, 360.0, nvls=True) == 360


def test_a_trace(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"op": "all_reduce", "bytes": 64, "count": 2, "rank": 3}\n\n'
                    '{"op": "broadcast", "bytes": 8, "dtype": "int8"}\n')  # fmt: skip
    first, again, last = read(path, ("float32", "int8"))
    assert first == again
    assert str(last) == "broadcast 8 B int8"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no calls"),
        ("{", "line 1: no JSON"),
        ("[1]", "a call is an object"),
        ('{"op": "scatter", "bytes": 4}', "'scatter' is none of all_gather"),
        ('{"op": "all_reduce"}', "bytes None"),
        ('\n{"op": "all_reduce", "bytes": -1}', "line 2: bytes -1"),
        ('{"op": "all_reduce", "bytes": 4, "dtype": "float7"}', "'float7'"),
        ('{"op": "all_reduce", "bytes": 4, "count": 1e6}', "count 1000000.0"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_bad_traces(tmp_path, text, said):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=said) as caught:
        read(path, ("float32",))
    assert "\n" not in str(caught.value)


def test_a_dtype_of_gpus_alone_says_where_it_is_missing(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"op": "all_reduce", "bytes": 4, "dtype": "bfloat16"}')
    with pytest.raises(InvalidArgument, match="'bfloat16' is none of those between CPUs: float32"):
        read(path, ("float32",), "between CPUs")


def test_traces_that_cannot_be_read(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, said in (("nowhere", "No such file"), ("binary", "no text")):
        with pytest.raises(InvalidArgument, match=said):
            read(tmp_path / name, ("float32",))


def test_a_trace_without_an_end_is_not_read_to_it():
    """It took all memory that the machine had."""
    with pytest.raises(InvalidArgument, match="more than 256 MiB, which is no trace"):
        read(Path("/dev/zero"), ("float32",))


def test_effort_shares_the_time():
    clock = Clock()
    effort = Effort(100, 10.0, 2, clock=clock)

    def sample():
        clock.now += 1.0
        return 7.0

    ticks = []
    assert effort.repeat(sample, ticks.append) == [7.0] * 5
    assert ticks == [1, 2, 3, 4, 5]
    effort.case_done()
    assert effort.share_s() == 5.0
    clock.now = 100.0
    assert len(effort.repeat(sample, ticks.append)) == 3  # a few, however late it is


def test_effort_stops_when_asked():
    asked = iter([False, False, True])
    effort = Effort(100, 10.0, 1, stop=lambda: next(asked))
    assert effort.repeat(lambda: 1.0, lambda _: None) == [1.0, 1.0]


def test_calls_of_a_sample():
    assert [calls_for(us) for us in (1.0, 100.0, 5000.0)] == [50, 20, 1]


@pytest.mark.parametrize("slots", [1, 2, 7, 4096, 7919])
def test_every_piece_once(slots):
    assert sorted(places(slots)) == list(range(slots))


def test_published_schema_is_current():
    published = json.loads((REPOSITORY / "docs/probe_record.schema.json").read_text())
    assert published == records.FORM.json_schema(), (
        "run: python -m braid.record.probe > docs/probe_record.schema.json"
    )
