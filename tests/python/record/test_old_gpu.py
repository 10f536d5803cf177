"""Records of the form braid.gpu/1 that are damaged, as every reader of records meets them."""

import copy
import json

import pytest

from braid.errors import InvalidArgument
from braid.probe import compare
from braid.record import old_gpu as old_gpu_record
from braid.report import runs
from braid.topo import measured
from braid.topo.errors import BadTopology

ROW = {"op": "all_gather", "bytes": 1024, "who": "nccl", "samples_us": [3.0, 1.0, 2.0], "wrong": 0}
WHOLE = {
    "schema": "braid.gpu/1", "command": "bench.py", "date": "2026", "commit": "abc",
    "dirty": False, "gpu": "NVIDIA H200", "cuda": "13.0", "torch": "2.11.0", "nccl": "2.28.9",
    "options": {}, "ranks": 2, "results": [ROW, {**ROW, "who": "braid", "samples_us": [4, 4]}],
}  # fmt: skip


def test_rows_of_a_case_are_joined():
    (result,) = old_gpu_record.read(WHOLE).results
    assert [(run.who, run.family, run.median_us) for run in result.runs] == [
        ("nccl", "nccl", 2.0),
        ("braid", "braid", 4.0),
    ]
    assert (result.total_bytes, result.mode, result.host_share) == (2048, "eager", None)
    # 2048 bytes in 2 us are 1.024 GB/s; each of two ranks sends half of it.
    assert result.runs[0].busbw_gbps == pytest.approx(0.512)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("samples_us", [], r"record.results\[0\].samples_us: asked for times above 0, found \[\]"),
        ("samples_us", [1.0, 0.0], "asked for times above 0"),
        ("samples_us", [1.0, -1.0], "asked for times above 0"),
        ("samples_us", [[]], r"samples_us\[0\]: asked for float"),
        ("samples_us", [10**400], r"samples_us\[0\]: asked for float"),
        ("samples_us", [float("nan")], "a finite number"),
        ("samples_us", "fast", "asked for a list"),
        ("bytes", 0, r"record.results\[0\].bytes: asked for 1 to"),
        ("bytes", 10**400, "asked for 1 to"),
        ("bytes", "1024", "asked for int"),
        ("who", 7, r"record.results\[0\].who: asked for str, found 7"),
        ("wrong", "none", "asked for int, found 'none'"),
        ("op", "gather", "no such case: gather"),
    ],
)
def test_damaged_rows(field, value, said, tmp_path):
    document = copy.deepcopy(WHOLE)
    document["results"][0][field] = value
    with pytest.raises(ValueError, match=said):
        old_gpu_record.read(document)
    path = tmp_path / "f.json"
    path.write_text(json.dumps(document))
    for read, error in (
        (compare.load, InvalidArgument),
        (runs.load, InvalidArgument),
        (measured.load, BadTopology),
    ):
        with pytest.raises(error, match=r"f\.json: ") as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ranks", [0, -2, "2", 10**400, None])
def test_damaged_ranks(ranks):
    with pytest.raises(ValueError, match=r"record\.ranks: asked for"):
        old_gpu_record.read({**WHOLE, "ranks": ranks})
