"""`braid plan` as a user meets it: help, JSON, pictures, one line and exit code 2 for bad input."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from braid.cli import main
from braid.cli.plan import app

ROOT = Path(__file__).parents[4]
COMMANDS = get_command(app).commands
TP = "tp --model llama3-70b --tp 4 --tokens 4096 --hw a100-nvlink3"
LAYOUT = "what-if --by layout --model llama3-8b --hw h200-nvlink4 --batch 64"
EXAMPLES = [
    (name, example)
    for name, command in COMMANDS.items()
    for example in re.findall(r"Example: braid plan (.+?)(?:\n\n|$)", command.help, re.DOTALL)
]


@pytest.fixture
def braid(monkeypatch, capsys):
    """Runs a command line; gives exit code, output and errors."""

    def run(line):
        monkeypatch.setattr(sys, "argv", ["braid", "plan", *shlex.split(line)])
        with pytest.raises(SystemExit) as stop:
            main()
        output = capsys.readouterr()
        return stop.value.code or 0, output.out, output.err

    monkeypatch.chdir(ROOT)
    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_json(name, braid):
    code, out, _ = braid(f"{name} --help")
    assert code == 0
    assert f"Example: braid plan {name}" in " ".join(out.split())
    assert "--json" in out


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_examples_of_the_help_run(name, example, braid, tmp_path):
    line = " ".join(example.split()).replace("hardware.svg", str(tmp_path / "hardware.svg"))
    assert line.startswith(name)
    code, out, err = braid(line)
    assert (code, err) == (0, "")
    assert out
    code, out, _ = braid(f"{line} --json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"].startswith("braid.plan")


def test_the_published_case_in_json(braid):
    _, out, _ = braid(f"{TP} --json")
    document = json.loads(out)
    keys = "schema command title inputs results rows notes warnings"
    assert list(document) == keys.split()
    found = {row["name"]: row for row in document["results"]}
    assert found["nvlink.communication_s"]["value"] == pytest.approx(0.09648)
    assert found["host_staged.communication_s"]["value"] == pytest.approx(1.81904)
    assert found["host_staged.prefill_s"]["value"] == pytest.approx(2.7201, rel=1e-4)
    assert set(found["nvlink.communication_s"]) == {
        "name",
        "label",
        "value",
        "unit",
        "basis",
        "origin",
    }
    assert found["nvlink.communication_s"]["basis"] == "measured"


def test_the_published_case_for_people(braid):
    _, out, _ = braid(TP)
    for text in ("96.48 ms", "1819.04 ms", "2720.14 ms", "2740.17 ms", "-0.73%", "measured"):
        assert text in out


def test_operations_by_their_other_names(braid):
    asked = "1TiB -n 8 --hw h200-nvlink4"
    code, out, _ = ours = braid(f"collective all_reduce {asked}")
    assert (code, bool(out)) == (0, True)
    for name in ("allreduce", "all_reduce_perf", "all-reduce"):
        assert braid(f"collective {name} {asked}") == ours


def test_a_note_has_its_time_in_the_table_s_unit(braid):
    _, out, _ = braid("collective all_reduce 1TiB -n 8 --hw h200-nvlink4")
    time = re.search(r"the\s+ring,\s+(\S+ ms)", out)[1]
    assert out.count(time) == 2


def test_a_measured_step_of_one_s_own(braid):
    step = "--step-ms 878.57 --step-tokens 4379 --step-path nvlink"
    _, given, _ = braid(f"{TP} {step} --json")
    found = {row["name"]: row["value"] for row in json.loads(given)["results"]}
    assert found["host_staged.prefill_s"] == pytest.approx(2.7201, rel=1e-4)


def test_a_record_comes_before_the_tables(braid):
    line = "collective all_reduce 256MiB -n 2 --hw h200-nvlink4 --algorithm auto --json"
    _, without, _ = braid(line)
    _, measured, _ = braid(f"{line} --record records/gpu_large_2.json")
    assert json.loads(without)["rows"][0]["cells"]["likely"]["basis"] == "assumed"
    cell = json.loads(measured)["rows"][0]["cells"]["likely"]
    assert cell["basis"] == "measured"
    assert "records/gpu_large_2.json" in cell["origin"]


def test_saved_machines_are_ranked_beside_names(braid):
    files = "records/gpu_large_2.json,records/topo_h200_2.json,records/p2p_4.json"
    code, out, _ = braid(f"what-if --model llama3-8b --tp 2 --hw h100,{files} --json")
    assert code == 0
    names = {row["name"] for row in json.loads(out)["rows"]}
    assert names == {"h100-nvlink4", *files.split(",")}
    cells = {row["name"]: row["cells"]["communication"] for row in json.loads(out)["rows"]}
    assert cells["records/gpu_large_2.json"]["basis"] == "measured"


def test_a_peak_for_gpus_that_the_tables_do_not_have(braid):
    line = "what-if --model llama3-8b --tp 2 --hw records/gloo_2.json,h100 --who gloo"
    code, _, err = braid(line)
    assert (code, "give --peak-tflops" in err) == (2, True)
    code, out, _ = braid(f"{line} --peak-tflops 100 --json")
    rows = {row["name"]: row["cells"]["computation"] for row in json.loads(out)["rows"]}
    assert rows["records/gloo_2.json"]["value"] == pytest.approx(
        rows["h100-nvlink4"]["value"] * 9.89
    )


@pytest.mark.parametrize(
    "line",
    [
        "zero --params 8B --gpus 8 --seq 4096 --batch 8",
        "fsdp --model llama3-8b --gpus 8 --seq 4096 --batch 8",
        "pp --model llama3-8b --stages 8 --microbatches 8 --tokens 4096",
    ],
)
def test_a_given_peak_and_mfu_count(line, braid):
    def compute_s(more):
        _, out, _ = braid(f"{line} --hw h100-nvlink4 --json {more}")
        found = {row["name"]: row["value"] for row in json.loads(out)["results"]}
        return found["compute_s"]

    once = compute_s("--peak-tflops 1000 --mfu 0.4")
    assert compute_s("--peak-tflops 2000 --mfu 0.4") == pytest.approx(once / 2)
    assert compute_s("--peak-tflops 1000 --mfu 0.8") == pytest.approx(once / 2)
    assert compute_s("--peak-tflops 1000 --recompute --mfu 0.4") == pytest.approx(once * 4 / 3)


@pytest.mark.parametrize(
    "line",
    [
        "ddp --model llama3-8b --gpus 8",
        "fsdp --model llama3-8b --gpus 8",
        "zero --model llama3-8b --gpus 8",
    ],
)
def test_training_over_nodes_by_a_chosen_algorithm(line, braid):
    def communication(algorithm):
        over = f"{line} --hw h200 --nodes 4 --network ib-ndr-8x400 --algorithm {algorithm}"
        code, out, err = braid(f"{over} --json")
        assert (code, err) == (0, "")
        document = json.loads(out)
        assert document["inputs"]["algorithm"] == algorithm
        found = {row["name"]: row["value"] for row in document["results"]}
        cells = [row["cells"]["likely"]["value"] for row in document["rows"]]
        return found.get("communication_s") or cells

    ways = [communication(each) for each in ("ring", "direct")]
    assert ways[1] > ways[0]
    code, _, err = braid(f"{line} --hw h200 --algorithm sharp")
    assert (code, "--nodes 2" in err) == (2, True)


def test_explain_says_a_formula_with_units_source_and_date(braid):
    code, out, _ = braid("explain F17")
    assert code == 0
    for text in ("busbw (n+1) / (2 (n-1))  [GB/s]", "busbw [GB/s]", "issue 2140", "read 2026-09"):
        assert text in " ".join(out.split()).replace("(n-1)) [", "(n-1))  [")
    _, out, _ = braid("explain F17 --json")
    (one, *_) = json.loads(out)["formulas"]
    assert {"name", "ids", "says", "unit", "given", "source", "date"} <= one.keys()


def test_svg_is_written(braid, tmp_path):
    path = tmp_path / "step.svg"
    code, _, _ = braid(f"timeline --compute-ms 420 --comm-ms 640 --svg {path}")
    assert code == 0
    assert path.read_text().startswith("<svg ")


def test_a_figure_that_is_missed_ends_in_code_1(braid):
    records = "records/gpu_small_2.json records/gpu_large_2.json"
    assert braid(f"validate {records} --first 1")[0] == 0
    assert braid(f"validate {records} --who braid")[0] == 1


BAD = [
    "tp --model llama-70b --tp 4 --tokens 4096 --hw a100-nvlink3",
    "tp --model llama3-70b --tp 0 --tokens 4096 --hw a100-nvlink3",
    "tp --model llama3-70b --tp 4 --tokens -1 --hw a100-nvlink3",
    "tp --model llama3-70b --tp 4 --tokens 4096 --hw a100",
    "tp --model llama3-70b --tp 4 --tokens 4096 --hw missing.json",
    "tp --model llama3-70b --tp 4 --tokens 4096 --hw README.json",
    "tp --model /nowhere/config.json --tp 4 --tokens 4096 --hw a100-nvlink3",
    f"{TP} --path ethernet",
    f"{TP} --mfu 0",
    f"{TP} --mfu nan",
    f"{TP} --peak-tflops -3",
    f"{TP} --step-ms -3",
    f"{TP} --step-ms 3",
    f"{TP} --algorithm rings",
    f"{TP} --record records/steady.json --who nccl",
    "tp --model llama3-70b --tp 16 --nodes 2 --tokens 1 --hw a100-nvlink3",
    "tp --model llama3-70b --tp 16 --nodes 2 --tokens 1 --hw a100-nvlink3 --nic-gbit 200",
    "tp --model llama3-70b --tp 16 --tokens 1 --hw a100-nvlink3",
    "tp --model llama3-70b --tp 2 --tokens 1 --hw records/gloo_2.json --who braid",
    "ddp --gpus 8 --hw a100-nvlink3",
    "ddp --gpus 8 --hw a100-nvlink3 --params 2B --model llama3-8b",
    "ddp --gpus 8 --hw a100-nvlink3 --params two",
    "ddp --gpus 8 --hw a100-nvlink3 --params -2B",
    "ddp --gpus 8 --hw a100-nvlink3 --params 1e999",
    "ddp --gpus 8 --hw a100-nvlink3 --params nan",
    "ddp --gpus 0 --hw a100-nvlink3 --params 2B",
    "ddp --gpus 8 --hw a100-nvlink3 --params 2B --bucket 0",
    "ddp --gpus 8 --hw a100-nvlink3 --params 2B --bucket 25Mb/s",
    "ddp --gpus 8 --hw a100-nvlink3 --params 2B --layers 0",
    "ddp --gpus 8 --hw a100-nvlink3 --params 2B --gradient-bytes nan",
    "ddp --gpus 8 --hw a100-nvlink3 --params 2B --nodes -1",
    "ddp --gpus 8 --hw a100-nvlink3 --params 2B --compute-ms inf",
    "zero --gpus 8 --hw a100-nvlink3 --params 2B --element-bytes 0",
    "fsdp --model gpt4 --gpus 8 --hw a100-nvlink3",
    "fsdp --model llama3-8b --gpus 8 --hw a100-nvlink3 --gradient-bytes -1",
    "pp --model llama3-8b --stages 0 --microbatches 1 --tokens 1 --hw a100-nvlink3",
    "ep --model llama3-8b --tokens 1 --hw a100-nvlink3",
    "mfu --hw a100-nvlink3 --gpus 0 --seq 1 --batch 1 --params 1B",
    "mfu --hw a100-nvlink3 --gpus 8 --seq 0 --batch 1 --params 1B",
    "mfu --hw a100-nvlink3 --gpus 8 --seq 1 --batch 1 --params 1B --step-ms -1",
    "memory",
    "memory --params 0",
    "transfer --params 80B",
    "transfer --params 1e308 --gbit 200",
    "transfer --params 80B --gbit 1e-300",
    "transfer --params 80B --gbit -1",
    "transfer --gbit 200",
    "transfer --size 0 --gbit 200",
    "transfer --size 4XB --gbit 200",
    "transfer --size 1GB --hw a100-nvlink3 --count 4",
    "transfer --size 1GB --hw a100-nvlink3 --count -1",
    "collective all_sum 1MiB -n 8 --hw a100-nvlink3",
    "collective all_reduce 0 -n 8 --hw a100-nvlink3",
    "collective -n 8 --hw a100-nvlink3 -- all_reduce -5",
    "collective all_reduce 1MiB -n 0 --hw a100-nvlink3",
    "collective all_reduce 1MiB -n 9 --hw a100-nvlink3",
    "collective all_reduce 1MiB -n 8 --nodes 2 --hw a100-nvlink3",
    "collective all_reduce 1MiB -n 8 --nodes 2 --hw a100-nvlink3 --network myrinet",
    "collective all_gather 1MiB -n 8 --hw h100-nvlink4 --algorithm nvls",
    "buckets --total 8GB -n 1 --hw a100-nvlink3",
    "buckets --total 8GB -n 8 --hw a100-nvlink3 --sizes 0",
    "buckets --total 0 -n 8 --hw a100-nvlink3",
    "nodes --nodes 2 --nics 8@1e-300Gbit/s --json",
    "nodes --nodes 2 --nics 8@infGbit/s",
    "nodes --nodes 2 --nics 8@1e400Gbit/s",
    f"nodes --nodes 2 --nics {10**22}@400Gbit/s",
    f"nodes --nodes {10**22} --nics 8@400Gbit/s",
    f"nodes --nodes 2 --nics 8@400Gbit/s -n {10**22}",
    "hw nothing",
    "models nothing",
    "what-if --model llama3-8b --by colour",
    "what-if --model llama3-8b --tp 0",
    "what-if --model llama3-8b --mfu 7",
    "what-if --model llama3-8b --by layout",
    f"{LAYOUT} --nodes 2",
    f"{LAYOUT} --gpus 0",
    f"{LAYOUT} --svg /nowhere/a.svg",
    f"{LAYOUT} --svg records/steady.json",
    f"{LAYOUT} --top 0",
    "what-if --model llama3-8b --hw missing.json",
    "what-if --model llama3-8b --tp 2 --hw records/bench_host.json",
    "what-if --model llama3-8b --tp 2 --hw records/tp_2.json",
    f"{TP} --record records/p2p_4.json",
    "pp --model llama3-8b --stages 2 --microbatches 1 --tokens 1 --hw a100-nvlink3 --mfu 2",
    "timeline --compute-ms 0",
    "timeline --compute-ms 1 --mode some",
    "explain busbq",
    "check F99",
    "validate missing.json",
    "validate pyproject.toml",
    "validate records/tuning.json",
    "validate records/gpu_small_2.json --first 3",
    "validate records/gpu_small_2.json --who nobody",
]


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_code_2(line, braid):
    code, out, err = braid(line)
    assert (code, out) == (2, "")
    assert err.startswith("braid: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err


@pytest.mark.parametrize("line", ["tp", "tp --tp four", "nothing", "tp --colour red"])
def test_usage_errors_end_in_code_2(line, braid):
    assert braid(line)[0] == 2


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_config_with_a_missing_field(field, braid, tmp_path):
    config = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 1000,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in config.items() if k != field}))
    code, _, err = braid(f"models {path}")
    assert code == 2
    assert f"config.json has no {field}" in err


def test_needs_no_compiled_module():
    program = (
        "import sys; sys.modules['braid._braid'] = None; sys.modules['numpy'] = None;"
        "sys.argv = ['braid', 'plan', 'explain', 'busbw']; from braid.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "busbw" in done.stdout


def test_a_mixture_computes_with_what_a_token_uses_and_sends_all(braid):
    job = "--model deepseek-v3 --gpus 8 --hw h100-nvlink4 --seq 4096 --batch 64 --json"
    found = {name: json.loads(braid(f"{name} {job}")[1]) for name in ("ddp", "zero", "fsdp", "mfu")}
    seconds = {
        name: next(one["value"] for one in answer["results"] if one["name"] == "compute_s")
        for name, answer in found.items()
    }
    assert seconds == dict.fromkeys(found, pytest.approx(14.93, rel=0.001))
    assert any("communication takes longer" in words for words in found["ddp"]["warnings"])
    for name in ("ddp", "zero", "fsdp"):
        counted = found[name]["inputs"]
        assert (counted["parameters"], counted["active_parameters"]) == (671026419200, 37552297472)
