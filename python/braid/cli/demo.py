"""`braid demo`: the whole story in about a minute, on GPUs where there are two, else between CPUs.

On GPUs: five operations on random data against the same between CPUs, byte for byte, then timed
beside NCCL. Between CPUs: three links at rates 4:2:1, paced so that any machine can carry them;
five operations of 64 MiB over all links against the fastest link alone; then a real training whose
gradients travel the same way.
"""

import sys
from pathlib import Path

from braid.bench import gpus
from braid.launch import launch

PACE = "shm=200MB/s,staged=100MB/s,rdma=50MB/s"
LINKS = "shm,staged,rdma"
TRAINING = Path("examples/01_train_digits.py")


def bench_command(out: Path, size: str, budget_s: float) -> list[str]:
    """The benchmark's command line, as a user would type it behind `braid`."""
    return [
        *("bench", "--ops", "all", "--sizes", size, "--links", LINKS, "--pace", PACE),
        *("--against", "best-link", "--iters", "20", "--time-budget", f"{budget_s:g}"),
        *("--json", str(out / "demo.json"), "--svg", str(out / "demo.svg")),
    ]


def _train(ranks: int, script: Path) -> int:
    if not script.exists():
        print(f"training skipped: {script} is not here; run from braid's checkout for it")
        return 0
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
    arguments = gpu_bench_command(out, size, budget_s)
    return code or launch([sys.executable, "-m", "braid.cli", *arguments], ranks)


def run(out: Path, ranks: int, size: str, budget_s: float, device: str) -> int:
    """The exit code of the first part that failed."""
    if device == "cpu":
        return run_on_host(out, ranks or 4, size or "64MiB", budget_s)
    found = gpus.find()
    if found.count >= 2:
        wanted = min(ranks or found.count, found.count, gpus.MOST)
        return run_on_gpus(out, wanted, size or "256MiB", budget_s)
    why = found.why_none or "this machine has one GPU, and a collective needs two"
    print(f"between CPUs: {why}", flush=True)
    return run_on_host(out, ranks or 4, size or "64MiB", budget_s)


def run_on_host(out: Path, ranks: int, size: str, budget_s: float) -> int:
    """The exit code of the first part that failed."""
    print(f"{ranks} ranks, links paced on purpose: {PACE}", flush=True)
    arguments = bench_command(out, size, budget_s)
    code = launch([sys.executable, "-m", "braid.cli", *arguments], ranks)
    return code or _train(ranks, TRAINING)
