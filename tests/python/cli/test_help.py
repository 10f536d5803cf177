"""Every command of every group: help with an example and exit codes, JSON, what it loads."""

import json
import os
import re
import subprocess
import sys

import pytest
from command_line import COMMANDS, EVERY, WITHOUT_JSON
from typer.testing import CliRunner

from braid.bench import gpus
from braid.cli import app, collectives, main


def test_they_are_all_here():
    assert len(EVERY) > 35
    assert {("bench",), ("bench", "tp-block"), ("topo", "diff"), ("plan", "tp")} <= set(EVERY)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help(words):
    done = CliRunner().invoke(app.app, [*words, "--help"])
    text = " ".join(done.output.split())
    assert done.exit_code == 0
    assert "Example: " in text
    assert f"braid {' '.join(words)}" in text.partition("Example: ")[2]
    assert "xit code" in text
    assert ("--json" in text) == (words not in WITHOUT_JSON)


@pytest.mark.parametrize(
    ("group", "some"),
    [
        ("", {"run", "bench", "nccl-check", "plan"}),
        ("bench", {"p2p", "moe", "compute-overlap"}),
        ("plan", {"tp", "hw"}),
        ("topo", {"diff"}),
        ("trace", {"merge"}),
    ],
)
def test_lists_of_commands_cut_no_summary(monkeypatch, group, some):
    """In a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    out = CliRunner().invoke(app.app, [*group.split(), "--help"]).output
    listed = out.partition("Commands:\n")[2].partition("\n\n")[0]
    rows = [line.split(maxsplit=1) for line in listed.splitlines() if line.strip()]
    assert {name for name, _ in rows} >= some
    for name, said in rows:
        assert said.endswith("."), f"{name}: {said}"
        assert not said.endswith(".."), f"{name}: {said}"
        assert len(said) <= 64, f"{name}: {said}"


WORDS = {
    "--against", "--algorithm", "--baselines", "--by", "--cases", "--commit", "--cores",
    "--deepep", "--device", "--dispatch", "--dtype", "--first", "--for", "--from", "--gpu",
    "--html", "--hw", "--json", "--links", "--mode", "--model", "--mscclpp", "--network",
    "--nic-per", "--nixl-plugin", "--nixl-python", "--op", "--ops", "--out", "--path", "--plain",
    "--provider", "--record", "--routings", "--shape", "--show", "--step-path", "--suite",
    "--svg", "--tune", "--variants", "--ways", "--who", "--words", "a", "b", "files", "name",
    "new", "number", "old", "op", "records", "target", "term", "trace",
}  # fmt: skip
"""Options and arguments that take names and files. Every other one takes a quantity."""
UNITS = re.compile(
    r"(?<![A-Za-z])(bytes|ms|seconds|30s|GB/s|MB/s|Gbit/s|TFLOP/s|0 to 1|GPUs|NICs|nodes|"
    r"processes|tokens|sequences|layers|blocks|samples|calls|parameters|microbatches|stages|rows|factor)\b|\d%",
    re.IGNORECASE,
)
UNITS_OF = {"ms": " ms", "bytes": "Bytes", "gbit": "Gbit/s", "tflops": "TFLOP/s", "size": "ytes",
            "sizes": "ytes", "total": "ytes", "budget": "Seconds", "tokens": "okens",
            "gpus": "GPUs", "nodes": "odes", "params": "Parameters"}  # fmt: skip
"""What the last word of a name promises."""
SAYS_NOTHING_IN_UNITS = {
    "nccl-env", "nccl-check", "deepep-env", "deepep-check", "options", "topo diff", "trace merge",
    "run",
}  # fmt: skip


def quantities():
    """(words of the command, name, help) of everything that takes a quantity."""
    for words, command in COMMANDS.items():
        for each in command.params:
            name = max(each.opts, key=len)
            if name != "--help" and not getattr(each, "is_flag", False) and name not in WORDS:
                yield " ".join(words), name, each.help


@pytest.mark.parametrize(("words", "name", "said"), list(quantities()))
def test_every_quantity_says_its_unit(words, name, said):
    """ "GPUs: " in front says where an option is heeded, not what it counts."""
    said = said.removeprefix("GPUs: ")
    assert UNITS.search(said), f"braid {words} {name}: {said}"
    promised = UNITS_OF.get(name.split("-")[-1], "")
    assert promised in said, f"braid {words} {name}: {said}"


def test_quantities_are_found():
    found = {name for _, name, _ in quantities()}
    assert {"--size", "--ranks", "-b", "--pace", "--tolerance", "--mfu", "size"} <= found
    assert len(list(quantities())) > 130
    assert not UNITS.search("The smallest one.")


@pytest.mark.parametrize("words", [" ".join(words) for words in EVERY])
def test_every_command_says_the_units_of_what_it_prints(words):
    text = CliRunner().invoke(app.app, [*words.split(), "--help"]).output.partition("Options:")[0]
    text += COMMANDS[tuple(words.split())].epilog or ""
    has_units = re.search(r"\b(GB/s|us|ms|seconds|bytes|TFLOP)\b", text, re.IGNORECASE)
    assert bool(has_units) != (words in SAYS_NOTHING_IN_UNITS), text


def loaded_by(*arguments, **environment):
    """Modules of a process that ran a command line."""
    program = (
        "import sys\n"
        f"sys.argv = ['braid', *{list(arguments)!r}]\n"
        "from braid.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('MODULES', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return set(done.stdout.rpartition("MODULES")[2].split())


def test_a_saved_machine_is_read_without_the_rest(tmp_path):
    """`braid topo --from` is to take less than 0.3 s: two thirds of it were modules of plan, bench
    and their tables."""
    path = tmp_path / "m.txt"
    path.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n")
    modules = loaded_by("topo", "--from", str(path))
    assert "braid.topo.document" in modules
    heavy = {"numpy", "matplotlib", "rich.table", "braid.plan.records", "braid.cli.collectives"}
    heavy |= {"braid.saved.table", "braid.saved.nccl_text"}
    assert not heavy & modules


@pytest.mark.parametrize("line", ["plan hw --json", "plan --help", "--help"])
def test_tables_are_loaded_when_one_is_drawn(line):
    modules = loaded_by(*line.split())
    assert "braid.plan.show" in modules
    assert not {"rich.console", "rich.table", "braid.topo.facts", "braid.record"} & modules


def test_plan_needs_no_numbers_of_arrays():
    modules = loaded_by("plan", "transfer", "--bytes", "1GiB", "--hw", "h200-nvlink4")
    assert "braid.plan.transfer" in modules
    assert not {"numpy", "braid.topo.document", "braid.cli.collectives"} & modules


@pytest.mark.parametrize("line", [["nccl-env", "--json"], ["--version"]], ids=" ".join)
def test_commands_without_a_group_load_none(line):
    modules = loaded_by(*line)
    assert ("braid.cli.nccl" in modules) == (line[0] == "nccl-env")
    assert not {"braid.cli.plan", "braid.cli.topo", "braid.cli.collectives"} & modules


def test_the_list_of_all_has_the_groups():
    modules = loaded_by("--help")
    assert {"braid.cli.plan", "braid.cli.topo", "braid.cli.collectives"} <= modules


@pytest.mark.parametrize(
    ("words", "position", "offered"),
    [
        ("braid t", "1", "topo"),
        ("braid plan wh", "2", "what-if"),
        ("braid bench tp", "2", "tp-block"),
        ("braid bench tp-block --wi", "3", "--within"),
        ("braid nccl-check --j", "2", "--json"),
    ],
)
def test_completion(words, position, offered):
    asked = {"_BRAID_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli"], capture_output=True, text=True, check=False,
        env={**os.environ, **asked},
    )  # fmt: skip
    assert offered in done.stdout.split()


def braid(monkeypatch, capsys, *arguments):
    """A command line in this process: exit code, standard output and error."""
    monkeypatch.setattr(sys, "argv", ["braid", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    return stop.value.code or 0, said.out, said.err


def test_options_as_json(monkeypatch, capsys):
    code, out, _ = braid(monkeypatch, capsys, "options", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["BRAID_TIMEOUT"]["type"]
    assert all(row.keys() == {"name", "type", "default", "meaning"} for row in rows.values())


def test_a_record_on_standard_output(monkeypatch, capsys, tmp_path):
    """And nothing else: tables and words go to standard error, no file is made."""
    monkeypatch.chdir(tmp_path)
    line = ("bench", "pages", "--device", "cpu", "--pages", "4KiB", "--total", "64KiB")
    code, out, err = braid(monkeypatch, capsys, *line, "--samples", "3", "--json", "-")
    record = json.loads(out)
    assert (code, record["schema"], record["kind"]) == (0, "braid.probe/1", "engine")
    assert "pages of 4 KiB" in err
    assert list(tmp_path.iterdir()) == []


def test_what_a_report_shows_as_json(monkeypatch, capsys, tmp_path):
    machine = tmp_path / "m.txt"
    machine.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n")
    out_path = tmp_path / "r.html"
    line = ("report", "--from", machine, "--out", out_path, "--json")
    code, out, _ = braid(monkeypatch, capsys, *line)
    said = json.loads(out)
    assert (code, said["schema"], said["page"]) == (0, "braid.report/1", str(out_path))
    assert said["records"] == said["plans"] == []
    assert {verdict["code"] for verdict in said["verdicts"]} >= {"model-unknown"}


@pytest.mark.parametrize(
    ("typed", "op"),
    [
        ("all_reduce", "all_reduce"),
        ("all_reduce_perf", "all_reduce"),
        ("allreduce", "all_reduce"),
        ("all-gather", "all_gather"),
        ("alltoall_perf", "all_to_all"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("broadcast_perf", "broadcast"),
    ],
)
def test_operations_as_nccl_tests_names_them(typed, op):
    line = ["braid", "bench", typed, "-b", "8"]
    app._take_nccl_words(line)
    assert line == ["braid", "bench", "--ops", op, "-b", "8"]


@pytest.mark.parametrize(
    "line", [["braid", "bench"], ["braid", "bench", "p2p"], ["braid", "plan", "all_reduce"]]
)
def test_other_words_stay(line):
    before = list(line)
    app._take_nccl_words(line)
    assert line == before


def test_who_gets_no_gpus_hears_why(monkeypatch, capsys):
    """But not who asked for CPUs, and not before a line that is refused."""
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(0, "there is none"))
    pages = ("pages", "--pages", "4KiB", "--total", "64KiB", "--samples", "3", "--quiet")
    assert (
        "braid: between CPUs: there is none; --device gpu"
        in braid(monkeypatch, capsys, "bench", *pages)[2]
    )
    assert "between CPUs" not in braid(monkeypatch, capsys, "bench", *pages, "--device", "cpu")[2]


def test_types_as_nccl_tests_names_them(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(collectives, "launch", lambda command, *_, **__: seen.append(command) or 0)
    line = ("bench", "all_reduce", "-d", "half", "-b", "1K", "-e", "1K", "--device", "cpu")
    assert braid(monkeypatch, capsys, *line)[0] == 0
    assert seen[0][3:6] == ["bench", "--ops", "all_reduce"]
    assert braid(monkeypatch, capsys, *line[:3], "quarter", "--device", "cpu")[0] == 2
