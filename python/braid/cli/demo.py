"""`braid demo`: the whole story in about a minute, on GPUs where there are two, else between CPUs.

On GPUs: five operations on random data against the same between CPUs, byte for byte, then timed
beside NCCL. Between CPUs: three links at rates 4:2:1, paced so that any machine can carry them;
five operations of 64 MiB over all links against the fastest link alone; then a real training whose
gradients travel the same way.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from braid.bench import gpus
from braid.cli import proven
from braid.cli.checks import fail
from braid.launch import launch
from braid.record import bench as bench_record
from braid.record import gpu as gpu_record

PACE = "shm=200MB/s,staged=100MB/s,rdma=50MB/s"
POSSIBLE = (200 + 100 + 50) / 200
"""Of the fastest link's rate alone, by all of them."""
LINKS = "shm,staged,rdma"
TRAINING = Path("examples/01_train_digits.py")


def bench_command(out: Path, size: str, budget_s: float) -> list[str]:
    """The benchmark's command line, as a user would type it behind `braid`."""
    return [
        *("bench", "--ops", "all", "--sizes", size, "--links", LINKS, "--pace", PACE),
        *("--against", "best-link", "--iters", "20", "--time-budget", f"{budget_s:g}"),
        *("--json", str(out / "demo.json"), "--svg", str(out / "demo.svg")),
    ]


def _train(ranks: int, script: Path) -> int | None:
    """The exit code; None where there is no training to run."""
    if ranks < 2:
        print("training skipped: one rank has no links that could share its messages")
        return None
    if not script.exists():
        print(f"training skipped: {script} is not here; run from braid's checkout for it")
        return None
    if importlib.util.find_spec("sklearn") is None:
        print(
            f"training skipped: {script} needs scikit-learn, which is not installed here; pip"
            " install scikit-learn"
        )
        return None
    print(f"\n{script}: handwritten digits, data-parallel over {ranks} ranks", flush=True)
    return launch([sys.executable, str(script)], ranks)


def gpu_bench_command(out: Path, size: str, budget_s: float) -> list[str]:
    """The same on GPUs."""
    return [
        *("bench", "--device", "gpu", "--ops", "all", "--sizes", f"64KiB,{size}"),
        *("--baselines", "nccl", "--time-budget", f"{budget_s:g}"),
        *("--json", str(out / "demo.json"), "--svg", str(out / "demo.svg")),
    ]


def run_on_gpus(out: Path, ranks: int, size: str, budget_s: float) -> int:
    """The exit code of the first part that failed."""
    print(f"{ranks} GPUs; random data, every byte compared with the CPU's result", flush=True)
    code = launch([sys.executable, "-m", "braid.bench.twin"], ranks)
    if code:
        return code
    code = _bench(gpu_bench_command(out, size, budget_s), out, ranks)
    if record := _record_of(out):
        print(proven.on_gpus(gpu_record.from_json(record)))
    return code


def run(out: Path, ranks: int, size: str, budget_s: float, device: str) -> int:
    """The exit code of the first part that failed; 2: GPUs were asked for that are not there."""
    if device == "cpu" or ranks == 1:
        return run_on_host(out, ranks or 4, size or "64MiB", budget_s)
    found = gpus.find()
    if found.count >= 2:
        wanted = min(ranks or found.count, found.count, gpus.MOST)
        return run_on_gpus(out, wanted, size or "256MiB", budget_s)
    why = found.why_none or "this machine has one GPU, and a collective needs two"
    if device == "gpu":
        fail(f"demo: --device: GPUs were asked for, but {why}")
    print(f"between CPUs: {why}", flush=True)
    return run_on_host(out, ranks or 4, size or "64MiB", budget_s)


def run_on_host(out: Path, ranks: int, size: str, budget_s: float) -> int:
    """The exit code of the first part that failed."""
    print(f"{ranks} ranks, links paced on purpose: {PACE}", flush=True)
    code = _bench(bench_command(out, size, budget_s), out, ranks)
    trained = None if code else _train(ranks, TRAINING)
    if record := _record_of(out):
        is_equal = None if trained is None else trained == 0
        print(proven.between_cpus(bench_record.from_json(record), POSSIBLE, is_equal))
    return code or trained or 0


def _bench(arguments: list[str], out: Path, ranks: int) -> int:
    """The exit code. An earlier record is gone: what is said at the end is of this run."""
    (out / "demo.json").unlink(missing_ok=True)
    return launch([sys.executable, "-m", "braid.cli", *arguments], ranks)


def _record_of(out: Path) -> Any:  # noqa: ANN401 - JSON
    """None where the run ended before it wrote one."""
    path = out / "demo.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
