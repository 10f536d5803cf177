"""Records, topologies and configs that were damaged: one line that names the file, nothing else."""

import copy
import json
import random

import pytest

from braid.cli.plan import options
from braid.errors import InvalidArgument
from braid.plan import models, records, topology
from braid.plan.collective import report
from braid.plan.predict import Request
from braid.plan.wrong import PlanError

HUGE = 10**400
QWEN = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip
TIMES = {"median_us": 7.0, "samples_us": [7.0]}
BENCH = {
    "schema": "braid.bench/1",
    "ranks": 4,
    "results": [
        {
            "op": "all_gather",
            "bytes": 4096,
            "times": TIMES,
            "baseline": {"name": "gloo", "times": {"median_us": 9.0}, "wrong_bytes": 0},
            "wrong_bytes": 0,
        }
    ],
}
OLD = {
    "schema": "braid.gpu/1",
    "gpu": "NVIDIA H200",
    "ranks": 4,
    "results": [{"op": "all_gather", "bytes": 1024, "who": "nccl", "samples_us": [3.0, 4.0]}],
}
NEW = {
    "schema": "braid.gpu/2",
    "gpu": "NVIDIA H200",
    "ranks": 4,
    "results": [
        {
            "op": "all_gather",
            "mode": "eager",
            "bytes": 1024,
            "total_bytes": 4096,
            "runs": [{"who": "nccl", "median_us": 3.5, "wrong": 0}],
        }
    ],
}
TOPOLOGY = {
    "schema": "braid.topo/1",
    "gpus": [{"name": "GPU0", "model": "NVIDIA H200"}, {"name": "GPU1", "model": "NVIDIA H200"}],
    "links": [
        {"a": gpu, "b": "NVSwitch", "kind": "nvlink", "theoretical_gbps": 450, "nccl_gbps": 370.8}
        for gpu in ("GPU0", "GPU1")
    ],
}
FORMS = {"bench": BENCH, "old": OLD, "new": NEW, "topology": TOPOLOGY}
WEIRD = [None, [], {}, "x", "", -1, 0, 1.5, True, [[]], HUGE, float("inf"), float("nan"), 1e308]


def changed(document, keys, value):
    """A copy with one field replaced."""
    made = copy.deepcopy(document)
    at = made
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    return made


def places(value, before=()):
    """Where a document has fields."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*before, key)
        if isinstance(item, dict | list):
            yield from places(item, (*before, key))


def ask(path, who):
    """What `braid plan collective` does with a file."""
    machine = options.machine(str(path), None, who)
    way = machine.paths[0]
    for op in ("all_gather", "all_reduce"):
        answer = report(Request(op, 1 << 20, 2), way, None, ["auto"])
        json.dumps(answer.document(), allow_nan=False)


@pytest.mark.parametrize(("name", "who"), [("bench", "braid"), ("bench", "gloo"), ("old", "nccl"),
                                           ("new", "nccl"), ("topology", "nccl")])  # fmt: skip
def test_any_field_replaced_by_anything(name, who, tmp_path):
    path = tmp_path / "f.json"
    rng = random.Random(name + who)
    every = [(keys, value) for keys in places(FORMS[name]) for value in WEIRD]
    for keys, value in rng.sample(every, min(len(every), 150)):
        path.write_text(json.dumps(changed(FORMS[name], keys, value)))
        try:
            ask(path, who)
            said = ""
        except InvalidArgument as error:
            said = str(error)
        assert "\n" not in said, (keys, value)
        assert len(said) < 600, (keys, value)


@pytest.mark.parametrize("schema", [None, 3, [], {"a": 1}, ["braid.gpu/1"]])
def test_a_schema_that_is_no_text(schema, tmp_path):
    path = tmp_path / "f.json"
    path.write_text(json.dumps({**OLD, "schema": schema}))
    with pytest.raises(PlanError, match=r"f.json: no record: it has no schema"):
        records.load(path)


def test_nesting_without_a_bottom(tmp_path):
    path = tmp_path / "f.json"
    path.write_text("[" * 100_000)
    with pytest.raises(PlanError, match=r"f.json: not JSON: maximum recursion"):
        records.load(path)
    with pytest.raises(PlanError, match=r"f.json: not JSON: maximum recursion"):
        models.find(str(path))


def test_a_model_without_an_end():
    with pytest.raises(PlanError, match=r"model /dev/zero: more than 64 MiB, which is no config"):
        models.find("/dev/zero")


@pytest.mark.parametrize("field", ["layer_types", "layers_block_type", "attention_layers"])
def test_kinds_of_layers_that_are_no_words(field, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN, field: [["a"], ["b"]]}))
    with pytest.raises(PlanError, match=rf"{field} is .* no rule for layers of kind \['a'\]"):
        models.find(str(path))


@pytest.mark.parametrize("name", ["\ud800Model", "\x1b[31mEVIL\x07Model", "\u00dcModel"])
def test_a_name_is_shown_that_a_terminal_can_show(name, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN, "architectures": [name]}))
    (said,) = [note for note in models.find(str(path)).notes if "no matrix for the output" in note]
    assert said.isprintable()
    assert "Model has no matrix" in said


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "f.json"
    path.write_bytes(b'{"schema": "\xff"}')
    for read in (records.load, lambda p: models.find(str(p))):
        with pytest.raises(PlanError, match=r"f.json: not JSON: 'utf-8' codec"):
            read(path)


@pytest.mark.parametrize(
    ("document", "keys", "value", "said"),
    [
        (OLD, ["ranks"], "4", "not a whole record: ranks: '4'"),
        (OLD, ["ranks"], True, "not a whole record: ranks: True"),
        (OLD, ["ranks"], 0, "not a whole record: ranks: 0"),
        (OLD, ["results", 0, "bytes"], HUGE, "not a whole record: bytes: 4000"),
        (OLD, ["results", 0, "samples_us"], [], "not a whole record: no median"),
        (OLD, ["results", 0, "samples_us"], ["a"], "not a whole record: us: 'a'"),
        (OLD, ["results"], {"a": 1}, "not a whole record"),
        (NEW, ["results", 0, "runs", 0, "median_us"], float("nan"), "us: nan"),
        (NEW, ["results", 0, "runs", 0, "median_us"], float("inf"), "us: inf"),
        (NEW, ["results", 0, "runs", 0, "median_us"], 0, "us: 0"),
        (NEW, ["results", 0, "runs", 0, "median_us"], True, "us: True"),
        (NEW, ["results", 0, "total_bytes"], 4096.0, "bytes: 4096.0"),
        (NEW, ["results", 0, "runs"], None, "not a whole record: 'NoneType'"),
    ],
)
def test_the_field_is_named(document, keys, value, said):
    with pytest.raises(PlanError, match=f"here: .*{said}"):
        records.curves(changed(document, keys, value), "nccl", "here")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -450, HUGE, "fast", [450]])
@pytest.mark.parametrize("field", ["theoretical_gbps", "measured_gbps", "nccl_gbps"])
def test_rates_that_no_link_has(field, value):
    with pytest.raises(PlanError, match=r"saved.json: not a whole topology"):
        topology.machine(changed(TOPOLOGY, ["links", 0, field], value), "saved.json")


def test_wrong_results_are_nobody_s_times():
    """A library that is fast and wrong plans nothing, in records of every form."""
    bad = changed(OLD, ["results", 0, "wrong"], 3)
    assert records.curves(bad, "nccl", "t") == []
    bad = changed(NEW, ["results", 0, "runs", 0, "wrong"], 3)
    assert records.curves(bad, "nccl", "t") == []
    ours_bad = changed(BENCH, ["results", 0, "wrong_bytes"], 1)
    assert records.curves(ours_bad, "braid", "t") == []
    assert [curve.points for curve in records.curves(ours_bad, "gloo", "t")] == [((4096, 9.0),)]
    theirs_bad = changed(BENCH, ["results", 0, "baseline", "wrong_bytes"], 1)
    assert records.curves(theirs_bad, "gloo", "t") == []
    assert [curve.points for curve in records.curves(theirs_bad, "braid", "t")] == [((4096, 7.0),)]


def test_a_name_that_is_no_text_is_shown_as_one():
    document = changed(NEW, ["results", 0, "runs", 0, "who"], 7)
    assert records.contestants(document) == ["7"]
