"""Words that the parser cannot take: one line that says which and where help is, exit code 2."""

import sys

import pytest

from braid.cli import main

PLAN = "plan collective all_reduce"


@pytest.fixture
def braid(monkeypatch, capsys):
    """A command line, in this process: exit code, output, errors."""

    def run(words):
        monkeypatch.setattr(sys, "argv", ["braid", *words.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            f"{PLAN} -5 -n 8 --hw h200",
            "braid: No such option: -5; see braid plan collective --help",
        ),
        (f"{PLAN} 1MiB -n x --hw h200", "braid: Invalid value for '--ranks' / '-n': "),
        (f"{PLAN} 1MiB -n 8", "braid: Missing option '--hw'; see braid plan collective --help"),
        ("plan timeline --compute-ms -1", "braid: --compute-ms: asked for -1, "),
        ("plan timeline --compute-ms 1 --comm-ms -2", "braid: --comm-ms: asked for -2, "),
        (
            "plan mfu --hw h200 --gpus 8 --seq 1 --batch 1 --params 1B --step-ms -3",
            "braid: --step-ms: asked for -3, ",
        ),
        (
            "plan ddp --hw h200 --gpus 8 --params 2B --compute-ms -4",
            "braid: --compute-ms: asked for -4, ",
        ),
        (
            "plan ddp --hw h200 --gpus 8 --params 2B --seq 2048",
            "braid: --seq says nothing without --batch; give both",
        ),
        (
            "plan zero --hw h200 --gpus 8 --params 2B --batch 8",
            "braid: --batch says nothing without --seq; give both",
        ),
        (
            "plan ddp --hw h200 --gpus 8 --params 2B --compute-ms 4 --seq 8 --batch 8",
            "braid: --compute-ms is the computation itself; ",
        ),
        (
            "plan what-if --model llama3-8b --hw h200 --peak-tflops -1",
            "braid: --peak-tflops: asked for -1, ",
        ),
        (
            "plan what-if --model llama3-8b --hw h200 --peak-tflops nan",
            "braid: --peak-tflops: asked for nan, ",
        ),
        (
            "plan what-if --model llama3-8b --by layout --hw h200 --tp 4",
            "braid: --tp: --by layout does not take it",
        ),
        (
            "plan what-if --model llama3-8b --hw h200 --batch 4",
            "braid: --batch: --by hardware does not take it",
        ),
        ("topo --gpu foo", "braid: topo: --gpu: 'foo' is no GPU that braid knows the links of"),
        ("plan tpp", "braid: No such command 'tpp'"),
        ("topology", "braid: No such command 'topology'"),
        ("topo --form x.xml", "braid: No such option: --form"),
        ("topo diff one", "braid: Missing argument"),
        ("bench p2p --size", "braid: Option '--size' requires an argument; see braid"),
        ("bench --time-budget -1", "braid: bench: --time-budget: asked for -1 s, "),
        ("bench --time-budget nan", "braid: bench: --time-budget: asked for nan s, "),
        ("bench --dtype float32,float64 --device cpu", "braid: bench: --dtype: asked for "),
        ("bench --op sum,max", "braid: bench: --op: asked for 'sum,max', it takes one"),
        ("bench latency --dtype float32,float64 --device cpu", "braid: "),
        ("report --out", "braid: Option '--out' requires an argument; see braid"),
    ],
)
def test_one_line_says_what_is_wrong(braid, words, said):
    code, out, err = braid(words)
    assert code == 2
    assert out == ""
    assert err.startswith(said)
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", ["", "plan"])
def test_a_group_without_words_lists_its_commands(braid, words):
    code, out, err = braid(words)
    assert code == 2
    assert "Commands:" in out + err


def test_exit_codes_of_commands_are_kept(braid):
    for words, code in (("plan check F17", 0), ("--version", 0), ("plan models nope", 2)):
        assert braid(words)[0] == code, words
