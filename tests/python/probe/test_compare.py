"""Two records: slower, faster, wrong, gone, of every form."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from gpu_fakes import record as gpu_record
from gpu_fakes import result

from braid.cli.compare import parse_tolerance
from braid.errors import InvalidArgument
from braid.probe.compare import load, rows
from braid.record.parts import Host
from braid.record.probe import SCHEMA, ProbeRecord, Series, times_of

RECORDS = Path(__file__).parents[3] / "records"


def probe(*series, **changes):
    """A record that holds them."""
    made = ProbeRecord(
        SCHEMA, "p2p", "braid bench p2p", "2026-11-21T00:00:00+00:00", "abc", False, "2 x H200", 0,
        Host("cpu", 2, 1.0, "6"), {}, {}, {}, list(series),
    )  # fmt: skip
    return replace(made, **changes)


def case(name, us, **changes):
    return replace(Series("one way", name, 8, times_of([us]), 1.0), **changes)


@pytest.fixture
def saved(tmp_path):
    """Writes a record and reads it again."""

    def write(record, name="r.json"):
        (tmp_path / name).write_text(json.dumps(asdict(record)))
        return load(tmp_path / name)

    return write


def findings(old, new, tolerance=0.05):
    return {row.case.split(",")[1].strip(): row.finding for row in rows(old, new, tolerance)}


def test_findings(saved):
    old = saved(probe(*(case(name, 100.0) for name in "abcdefg")))
    new = saved(
        probe(
            case("a", 104.0), case("b", 106.0), case("c", 90.0), case("d", 100.0, wrong_bytes=1),
            case("e", 1.0, times=None, gbps=None, verdict="hang"),
            case("f", 1.0, times=None, gbps=None, verdict="unsupported"), case("h", 5.0),
        )
    )  # fmt: skip
    assert findings(old, new) == {
        "a": "same", "b": "slower", "c": "faster", "d": "wrong", "e": "wrong", "f": "gone",
        "g": "gone", "h": "new",
    }  # fmt: skip
    assert findings(old, new, 0.07)["b"] == "same"


def test_noise_is_said(saved):
    noisy = replace(case("a", 1.0), times=times_of([100.0, 100.0, 300.0]))
    (row,) = rows(saved(probe(noisy)), saved(probe(case("a", 120.0))), 0.05)
    assert (row.finding, row.is_noisy) == ("slower", True)


@pytest.mark.parametrize("name", ["paced_421", "gloo_2", "gpu_large_2", "gpu_small_2"])
def test_published_records_equal_themselves(name):
    one = load(RECORDS / f"{name}.json")
    assert {row.finding for row in rows(one, one, 0.0)} == {"same"}


def test_gpu_records(saved):
    old = saved(gpu_record([result("all_gather", 64, braid=2.0, nccl=4.0)]))
    new = saved(gpu_record([result("all_gather", 64, braid=3.0, nccl=4.0)]))
    assert [row.finding for row in rows(old, new, 0.05)] == ["slower", "same"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "cannot be compared"),
        ('{"schema": "braid.topo/1"}', "cannot be compared"),
        ('{"schema": "braid.probe/1"}', "not a whole record"),
        ('{"schema": "braid.gpu/1"}', "not a whole record"),
    ],
)
def test_bad_records(tmp_path, text, said):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InvalidArgument, match=said) as caught:
        load(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)


def test_tolerances():
    assert parse_tolerance("5%") == parse_tolerance("0.05") == 0.05
    for text in ("five", "-1", "100%", "nan", ""):
        with pytest.raises(InvalidArgument, match="--tolerance"):
            parse_tolerance(text)
