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
        (
            "plan tp --tokens 9 --model llama3-70b",
            "braid: Missing options '--hw', '--tp'; see braid plan tp --help",
        ),
        (
            "bench engine --ways local --cores 0,99999",
            "braid: bench engine: --cores: asked for two of ",
        ),
        ("run --grace -3 x", "braid: run: --grace: asked for -3 s, "),
        ("run --grace nan x", "braid: run: --grace: asked for nan s, "),
        ("bench --sizes 0", "braid: bench: --sizes: asked for 0 B, at least 1 B is needed"),
        ("bench --sizes 0,64", "braid: bench: --sizes: asked for 0 B, at least 1 B is needed"),
        ("bench --sizes=", "braid: bench: --sizes: '' is no size; without --sizes "),
        ("demo --size 0", "braid: demo: --size: asked for 0 B, at least 1 B is needed"),
        ("demo --time-budget -1", "braid: demo: --time-budget: asked for -1 s, it must be from 0"),
        ("demo --size=", "braid: demo: --size: '' is no size"),
        ("explain all_reduce 0", "braid: explain: SIZE: asked for 0 B, at least 1 B is needed"),
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
        (
            "report --tp 99",
            "braid: report: --tp says nothing without --model; give both",
        ),
        ("report --out", "braid: Option '--out' requires an argument; see braid"),
        ("explain all_reduce 1MiB -n 0", "braid: --ranks: asked for 0, braid takes 1 to 64"),
        ("explain all_reduce 1MiB -n -3", "braid: --ranks: asked for -3, "),
        ("explain foo 1MiB", "braid: explain: OP: 'foo' is no operation; braid has all_gather, "),
        ("explain all_reduce foo", "braid: explain: SIZE: 'foo' is no size; "),
        ("demo --size foo", "braid: demo: --size: 'foo' is no size; "),
        ("demo --device xyz", "braid: demo: --device: 'xyz' is no device; write auto, gpu or cpu"),
        ("bench --device xyz", "braid: bench: --device: 'xyz' is no device; "),
        ("bench --mode foo", "braid: bench: --mode: 'foo' is no mode; braid has auto, "),
        ("bench --baselines foo", "braid: bench: --baselines: 'foo' is no baseline; braid has "),
        ("bench --variants foo", "braid: bench: --variants: 'foo' is no variant; braid has "),
        ("bench --suite foo", "braid: bench: --suite: 'foo' is no suite; braid has flexlink"),
        ("bench --device cpu --mode graph", "braid: bench: --mode: this is for GPUs; "),
        ("bench --device cpu --baselines nccl", "braid: bench: --baselines: this is for GPUs; "),
        ("bench --device cpu --variants links", "braid: bench: --variants: this is for GPUs; "),
        ("bench --device cpu --sizes 9999999999GiB", "braid: bench: --sizes: '9999999999GiB' is t"),
        ("bench --links foo", "braid: BRAID_LINKS: 'foo' is not a link; "),
        ("bench --pace foo", "braid: BRAID_PACE: 'foo' has no '='; "),
        ("bench --timeout abc", "braid: BRAID_TIMEOUT: 'abc' is not a duration; "),
        ("bench --tune maybe", "braid: BRAID_TUNE is 'maybe', expected auto, off or force"),
        ("topo --svg /nowhere/x.svg", "braid: topo: --svg: /nowhere/x.svg: there is no folder "),
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


def test_what_was_meant_is_offered(braid):
    assert braid("explain all_reduc 1MiB")[2].endswith("; did you mean all_reduce?\n")
    assert "did you mean" not in braid("explain foo 1MiB")[2]


@pytest.mark.parametrize("check", ["nccl-check", "deepep-check"])
def test_a_check_refuses_what_programs_would(braid, monkeypatch, check):
    """One said it as if it were in place, the other ended in tracebacks."""
    monkeypatch.setenv("BRAID_NCCL", "maybe")
    code, out, err = braid(check)
    assert (code, out) == (2, "")
    assert err == "braid: BRAID_NCCL: 'maybe' is not a switch; write on or off\n"


def test_a_demo_on_gpus_that_are_not_there_is_refused(braid, monkeypatch):
    from braid.bench import gpus

    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(0, "there is none"))
    code, _, err = braid("demo --device gpu")
    assert (code, err) == (2, "braid: demo: --device: GPUs were asked for, but there is none\n")


@pytest.mark.parametrize(
    ("count", "why", "said"),
    [
        (0, "this machine has no NVIDIA GPU", "this machine has no NVIDIA GPU"),
        (2, "", "2 are here"),
    ],
)
def test_moe_on_gpus_that_are_not_there_is_refused_before_ranks_start(
    braid, monkeypatch, count, why, said
):
    pytest.importorskip("torch")
    from braid.bench import gpus
    from braid.cli import bench_moe

    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(count, why))
    monkeypatch.setattr(bench_moe, "launch", lambda *_: pytest.fail("ranks were started"))
    code, out, err = braid("bench moe --gpu -n 4")
    assert (code, out) == (2, "")
    assert err == f"braid: bench moe: --gpu: asked for 4 GPUs, one for each rank, but {said}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--shape foo", "--shape: 'foo' is no shape; braid has deepseek-v3, "),
        ("--routings foo", "--routings: 'foo' is no routing; braid has uniform, "),
        ("--deepep some", "--deepep: 'some' is no mode; braid has no, normal, both"),
        ("--tokens 128,1k", "--tokens: asked for numbers such as 128,1024, found '128,1k'"),
        ("--tokens 128,0", "--tokens: asked for numbers such as 128,1024, found '128,0'"),
        ("--tokens=", "--tokens: asked for numbers such as 128,1024, found ''"),
        ("--svg /nowhere/x.svg", "--svg: /nowhere/x.svg: there is no folder "),
        ("--beside-gemm", "--beside-gemm: it is GPUs that are looked at: give --gpu, too"),
        (
            "--gpu --beside-gemm --tokens 512,1024",
            "--beside-gemm: asked for 512 --tokens or more, low-latency calls are of 256 at most",
        ),
    ],
)
def test_moe_refuses_words_once_and_not_in_every_rank(braid, monkeypatch, words, said):
    pytest.importorskip("torch")
    from braid.cli import bench_moe

    monkeypatch.setattr(bench_moe, "launch", lambda *_: pytest.fail("ranks were started"))
    code, out, err = braid(f"bench moe {words}")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_moe_without_torch_says_what_to_install(braid, monkeypatch):
    from braid.cli import bench_moe

    monkeypatch.setattr(bench_moe.importlib.util, "find_spec", lambda _: None)
    assert braid("bench moe")[2] == (
        "braid: bench moe: needs PyTorch, which is not installed here: pip install torch\n"
    )


@pytest.mark.parametrize("op", ["all_gather", "all_reduce"])
def test_a_case_beyond_memory_is_refused_before_ranks_start(braid, monkeypatch, op):
    from braid.bench.host import memory
    from braid.cli import collectives

    monkeypatch.setattr(memory, "free_bytes", lambda: 21 << 30)
    monkeypatch.setattr(collectives, "launch", lambda *_, **__: pytest.fail("ranks were started"))
    code, out, err = braid(f"bench --device cpu --ops {op} --sizes 1KiB,40GiB -n 2")
    assert (code, out) == (2, "")
    needs = {"all_gather": 2 * (20 + 3 * 40), "all_reduce": 2 * (40 + 3 * 40)}[op]
    assert err == (
        f"braid: bench: --sizes: {op} of 40 GiB needs {needs} GiB on 2 ranks, and 21 GiB of memory"
        " are free\n"
    )


def test_exit_codes_of_commands_are_kept(braid):
    for words, code in (("plan check F17", 0), ("--version", 0), ("plan models nope", 2)):
        assert braid(words)[0] == code, words


def test_a_gpu_is_known_by_the_name_that_people_type(braid, tmp_path):
    matrix = tmp_path / "topo.txt"
    matrix.write_text("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n")
    code, out, _ = braid(f"topo --from {matrix} --gpu 4090 --json")
    assert code == 0
    assert '"model": "RTX 4090"' in out
    code, _, err = braid(f"topo --from {matrix} --gpu 409")
    assert code == 2
    assert "it knows H100 NVL, " in err
