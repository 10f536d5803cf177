"""What every command prints with --json: it fits the schema in docs/, and its fields keep their
names.

fixtures/field_names.txt has every field, one a line. A form (braid.plan/1) stands for the fields of
its schema, a command for those that it printed: all of them where it has no form, and the names
that plan gives to its inputs, results and columns.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import EVERY, WITHOUT_JSON
from json_schema import complaints, field_names, keys, published

from braid.cli import main, nccl
from braid.plan import answer, glossary
from braid.probe import compare
from braid.report import answer as report_answer
from braid.typed_json import format_schema

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests/python/fixtures"
FORMS = {
    "topo": "braid.topo/1", "bench": "braid.bench/1", "bench compare": "braid.compare/1",
    "report": "braid.report/1", "plan explain": "braid.plan.explain/1",
}  # fmt: skip
"""Other commands of bench print braid.probe/1, of plan braid.plan/1."""
BARE = {"topo diff", "trace merge", "trace summary", "options", "explain", "nccl-env", "nccl-check"}
BARE |= {"deepep-env", "deepep-check"}
"""What they print says no form."""
NEEDS_MORE = {("bench", "overlap"), ("bench", "nodes")}
"""Than this machine: a GPU, several nodes. Their records are of forms that other kinds have."""
BETWEEN_CPUS = "--device cpu -n 2 --samples 3 --json -"
LANES = "--device cpu --samples 3 --json -"
RECORD = "{root}/records/gpu_large_2.json"
LINES = {
    "explain": "all_reduce 64KiB -n 2 --json",
    "options": "--json",
    "nccl-env": "--for vllm --json",
    "nccl-check": "--json",
    "deepep-env": "--json",
    "deepep-check": "--json",
    "report": f"{RECORD} --from {{topo}}/version_1.json --model llama3-8b --out r.html --json",
    "topo": f"--from {{topo}}/version_1.json --record {RECORD} --json",
    "topo diff": "{topo}/h100_x8.txt {topo}/h800_x8.txt --json",
    "plan transfer": "--params 80B --gbit 200 --json",
    "plan collective": "all_reduce 64MiB -n 8 --hw h200-nvlink4 --json",
    "plan buckets": "--total 8GB -n 8 --hw a100-nvlink3 --json",
    "plan hw": "--json",
    "plan models": "deepseek-v3 --json",
    "plan ddp": "--params 2B --gpus 8 --hw a100-nvlink3 --seq 2048 --batch 16 --json",
    "plan zero": "--params 10B --gpus 8 --hw a100-nvlink3 --json",
    "plan fsdp": "--model llama3-70b --gpus 8 --hw h200-nvlink4 --seq 8192 --batch 8 --json",
    "plan pp": "--model gpt3-175b --stages 8 --microbatches 32 --tokens 2048 --hw a100-nvlink3"
    " --json",
    "plan ep": "--model deepseek-v3 --tokens 4096 --hw h200-nvlink4 --json",
    "plan mfu": "--params 2B --seq 2048 --batch 16 --gpus 8 --hw a100-nvlink3 --json",
    "plan memory": "--params 2B --hw a100-nvlink3 --json",
    "plan nodes": "--nodes 2 --nics 1@800Mbit/s -n 4 --inside 3 --op all_gather --json",
    "plan tp": "--model llama3-70b --tp 4 --tokens 4096 --hw a100-nvlink3 --json",
    "plan what-if": "--model llama3-70b --json",
    "plan timeline": "--compute-ms 420 --comm-ms 640 --json",
    "plan explain": "busbw --json",
    "plan check": "--json",
    "plan validate": f"{RECORD} --first 2 --json",
    "bench": "--ops all_reduce --sizes 4KiB --device cpu -n 2 --iters 2 --time-budget 1 --json -",
    "bench p2p": f"--size 4KiB --links shm {LANES}",
    "bench host": f"--windows 4KiB {LANES}",
    "bench interference": f"--size 4KiB {LANES}",
    "bench pages": f"--pages 4KiB --total 64KiB {LANES}",
    "bench engine": "--sizes 64KiB --ways local --total 1MiB --samples 2 --time-budget 1 --json -",
    "bench kv": "--sizes 64KiB --ways local --total 1MiB --samples 2 --layer-ms 1 --json -",
    "bench weights": "--trainers 1 --workers 1 --total 4MiB --tensors 2 --ways local --samples 2"
    " --json -",
    "bench latency": f"--total 64KiB --messages 4 {BETWEEN_CPUS}",
    "bench compute-overlap": f"--size 64KiB {BETWEEN_CPUS}",
    "bench moe": "-n 2 --shape tiny --tokens 16 --samples 3 --json -",
    "bench replay": f"trace.jsonl {BETWEEN_CPUS}",
    "bench tp-block": f"--model config.json --tokens 8 --layers 2 --time-budget 1 {BETWEEN_CPUS}",
    "bench compare": f"{RECORD} {RECORD} --json",
    "trace merge": "timeline.json -o all.json --json",
    "trace summary": "timeline.json --json",
}
RANKS = {"bench", "explain", "deepep-check"} | {
    f"bench {kind}" for kind in ("latency", "compute-overlap", "replay", "tp-block", "moe")
}
"""What ranks print does not pass through this process."""
FILES = {
    "trace.jsonl": '{"op": "all_reduce", "bytes": 4096}\n',
    "config.json": json.dumps(
        {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
        }
    ),
    "timeline.json": json.dumps(
        {
            "otherData": {"rank": 0, "host": "a", "monotonic_ns": 0, "realtime_ns": 0},
            "traceEvents": [
                {
                    "name": "all_reduce", "cat": "host", "ph": "X", "pid": 0, "tid": 1, "ts": 1.0,
                    "dur": 2.0, "args": {"dtype": "float32", "bytes": 1024, "path": "lanes",
                    "state": "completed"},
                }
            ],
        }
    ),
}  # fmt: skip


def form_of(words):
    default = {"plan": "braid.plan/1", "bench": "braid.probe/1"}.get(words.split()[0])
    return None if words in BARE else FORMS.get(words, default)


def printed(words, folder, monkeypatch, capsys):
    """What the command says on standard output, as JSON."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    line = LINES[words].format(root=ROOT, topo=FIXTURES / "topo")
    command = ["braid", *words.split(), *shlex.split(line)]
    if words in RANKS:
        done = subprocess.run(
            [sys.executable, "-m", "braid.cli", *command[1:]], capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)
    library = folder / nccl.FILE
    library.touch()
    monkeypatch.setattr(nccl, "library", lambda: library)
    monkeypatch.setattr(nccl, "has_torch", lambda: False)
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    return json.loads(capsys.readouterr().out)


def kept(name):
    """The fields that field_names.txt has of a form or a command."""
    lines = (FIXTURES / "field_names.txt").read_text().splitlines()
    return {line.partition(": ")[2] for line in lines if line.partition(": ")[0] == name}


def own_names(form, document):
    """Fields that are the command's own."""
    if form is None:
        yield from keys(document)
    if form == "braid.plan/1":
        yield from (f"inputs.{name}" for name in document["inputs"])
        yield from (f"results.{each['name']}" for each in document["results"])
        yield from (f"cells.{name}" for row in document["rows"] for name in row["cells"])


def test_every_command_is_here():
    assert {" ".join(words) for words in set(EVERY) - WITHOUT_JSON - NEEDS_MORE} == LINES.keys()


@pytest.mark.parametrize("words", LINES)
def test_it_fits_its_schema(words, tmp_path, monkeypatch, capsys):
    document = printed(words, tmp_path, monkeypatch, capsys)
    form = form_of(words)
    if form:
        assert document["schema"] == form
        assert list(complaints(published(form), document)) == []
    now, before = set(own_names(form, document)), kept(f"braid {words}")
    assert now == before, "\n".join(f"braid {words}: {name}" for name in sorted(now ^ before))


@pytest.mark.parametrize(
    "form", sorted({form_of(words) for words in LINES} - {None} | {"braid.gpu/2"})
)
def test_fields_keep_their_names(form):
    """A field that is renamed or gone breaks programs: give the form a new number. A new one is
    added to field_names.txt.
    """
    now = set(field_names(published(form)))
    assert now == kept(form), "\n".join(f"{form}: {name}" for name in sorted(now ^ kept(form)))


@pytest.mark.parametrize(
    ("name", "schema", "module"),
    [
        ("plan", format_schema(answer.Answer, f"answer of braid plan, {answer.SCHEMA}"), answer),
        ("report", report_answer.json_schema(), report_answer),
        (
            "plan_explain",
            format_schema(glossary.Meanings, f"words and meanings, {glossary.SCHEMA}"),
            glossary,
        ),
        (
            "compare",
            format_schema(compare.Comparison, f"comparison of two records, {compare.SCHEMA}"),
            compare,
        ),
    ],
)
def test_the_schemas_are_those_of_the_classes(name, schema, module, capsys):
    module.main()
    made = capsys.readouterr().out
    assert json.loads(made) == schema
    path = ROOT / f"docs/{name}.schema.json"
    assert path.read_text() == made, f"run: python -m {module.__name__} > docs/{path.name}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "braid.plan/2"}, "document.schema: 'braid.plan/2' is none of"),
        ({"title": 3}, "document.title: 3 is no string"),
        ({"more": 1}, "document: more is no field"),
        ({"inputs": {"a": []}}, "document.inputs.a: [] is none of"),
        ({"results": [{"name": "a"}]}, "document.results[0]: unit is missing"),
        ({"rows": [{"name": "", "note": "", "cells": {"a": 1}}]}, "cells.a: 1 is no object"),
    ],
)
def test_what_does_not_fit_is_seen(change, said):
    fits = {
        "schema": "braid.plan/1", "command": "", "title": "", "inputs": {"a": 1, "b": None},
        "results": [], "rows": [], "notes": [], "warnings": [],
    }  # fmt: skip
    schema = published("braid.plan/1")
    assert list(complaints(schema, fits)) == []
    assert any(said in line for line in complaints(schema, {**fits, **change}))
