"""Programs of others on this machine's GPUs, by NCCL alone and with braid in its place.

    PYTHONPATH=python:PACKAGES python3 tests/gpu/apps/run.py --logs LOGS --json apps_2.json

Nothing of braid is in what runs: DeepSpeed and Megatron-Core train (examples/recipes), vLLM's and
SGLang's own NCCL layers are called (pynccl.py beside this file), and JAX and CuPy, whose one
process has all GPUs. Each is started twice, the second time under LD_PRELOAD or the program's own
variable. One line a program says whether every loss of every rank was the same, or how many results
were wrong; both step times; and which calls braid took over. The exit code is 1 when losses differ,
a result is wrong, a program fails or does not end, or braid took nothing over; what is not
installed is skipped by name, and where all was skipped the code is 1, too.

With two ranks a sum has one order, so that losses must be equal to the bit. Where they are not,
NCCL runs once more: if it differs from itself the kernels do not repeat, and losses need only be
close, as with more ranks.
"""

import argparse
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RECIPES = ROOT / "examples" / "recipes"
DROP_IN = ROOT / "python" / "braid" / "libbraid-nccl.so"
CLOSE = 0.02
"""What losses may differ by where sums have more than one order."""
LEAST_S = 20.0
"""With less left nothing is started."""


@dataclass(frozen=True)
class Program:
    """One line of what is said."""

    name: str
    title: str
    """What records and documents call it."""
    needs: str
    """The module without which it cannot run."""
    command: tuple[str, ...]
    variable: str = "LD_PRELOAD"
    """What names the drop-in to it."""
    more: tuple[tuple[str, str], ...] = ()
    """Other variables, with braid."""
    is_one_process: bool = False
    """Whether one process has all the GPUs."""
    on_cpus: bool = False
    """Whether it can do without GPUs, to try this program itself."""


def trains(name: str, title: str, needs: str, script: str, *arguments: str) -> Program:
    """A recipe's program."""
    command = (str(RECIPES / script), *arguments)
    return Program(name, title, needs, command, on_cpus=needs == "deepspeed")


def layer(name: str, title: str, variable: str, *more: tuple[str, str]) -> Program:
    """A server's NCCL layer."""
    title += "'s NCCL layer"
    return Program(name, title, name, (str(HERE / "pynccl.py"), name), variable, more)


def threads(name: str, title: str, script: str) -> Program:
    """A library whose one process has a thread per GPU."""
    return Program(name, title, name, (str(HERE / script),), is_one_process=True)


ZERO, MEGATRON = ("deepspeed", "deepspeed_gpt.py"), ("megatron", "megatron_gpt.py")
PROGRAMS = (
    trains("deepspeed-zero2", "DeepSpeed, ZeRO 2", *ZERO, "--stage", "2"),
    trains("deepspeed-zero3", "DeepSpeed, ZeRO 3", *ZERO, "--stage", "3"),
    trains("megatron-tp", "Megatron-Core, tensor parallel", *MEGATRON, "--how", "tp"),
    trains("megatron-dp", "Megatron-Core, data parallel", *MEGATRON, "--how", "dp"),
    layer("vllm", "vLLM", "VLLM_NCCL_SO_PATH"),
    layer("sglang", "SGLang", "SGLANG_NCCL_SO_PATH", ("BRAID_NCCL_GROUPED", "on")),
    threads("jax", "JAX", "jax_collectives.py"),
    threads("cupy", "CuPy", "cupy_collectives.py"),
)


@dataclass
class Run:
    """One program, one way: what its ranks wrote."""

    ended: str = ""
    """"" when it did by itself and well."""
    seconds: float = 0.0
    ranks: list[dict] = field(default_factory=list)
    calls: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rank 0's."""

    def times_us(self) -> dict[str, list[float]]:
        """By name; each sample is the slowest rank's."""
        names = self.ranks[0]["times_us"] if self.ranks else {}
        return {
            name: [max(us) for us in zip(*(r["times_us"][name] for r in self.ranks), strict=True)]
            for name in names
        }

    def losses(self) -> list[list[float]]:
        """Of every rank, in every step."""
        return [[float.fromhex(loss) for loss in rank.get("losses", [])] for rank in self.ranks]

    def total(self, what: str) -> int:
        """A count, of all ranks."""
        return sum(rank.get(what, 0) for rank in self.ranks)


def gaps(one: Run, other: Run) -> list[float]:
    """Of a step's losses, the largest of all ranks."""
    ranks = zip(one.losses(), other.losses(), strict=True)
    each = [[abs(a - b) for a, b in zip(*pair, strict=True)] for pair in ranks]
    steps = zip(*each, strict=True)
    return [max(gap if gap == gap else math.inf for gap in step) for step in steps]


# ---- running ----


def environment(program: Program, way: str, limit_s: float, ranks: int) -> dict[str, str]:
    """Of the child: braid is named in it or nowhere."""
    named = {"LD_PRELOAD", *(each.variable for each in PROGRAMS)}
    found = {name: value for name, value in os.environ.items() if name not in named}
    found |= {"PYTHONUNBUFFERED": "1", "WITNESS_LIMIT_S": str(max(1.0, limit_s - 10))}
    if program.is_one_process and "CUDA_VISIBLE_DEVICES" not in found:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(ranks)))
    if way == "braid" and DROP_IN.exists():
        found |= {program.variable: str(DROP_IN), "BRAID_LOG": os.environ.get("BRAID_LOG", "info")}
        found |= dict(program.more)
    return found


def wait(child: subprocess.Popen, limit_s: float) -> str:
    """Why the child is no good; "" when it is. Its ranks end with it."""
    try:
        code = child.wait(limit_s)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        return f"did not end in {limit_s:.0f} s"
    return f"exit code {code}" if code else ""


def started(program: Program, way: str, args: argparse.Namespace, limit_s: float) -> Run:
    """Runs it; its words go to LOGS/NAME.WAY.log, its findings into the folder beside that."""
    name = f"{program.name}.{way.replace(' ', '_')}"
    folder = args.logs / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    processes = 1 if program.is_one_process else args.ranks
    command = [sys.executable, "-m", "braid.cli", "run", "-n", str(processes)]
    command += [str(HERE / "witness.py"), str(folder / "calls.%r.json"), *program.command]
    command += ["--out", str(folder / "told.%r.json"), *(["--cpu"] if args.cpu else [])]
    began = time.monotonic()
    with (args.logs / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(program, way, limit_s, args.ranks),
        )
        ended = wait(child, limit_s)
    found = Run(ended, time.monotonic() - began)
    told = [folder / f"told.{rank}.json" for rank in range(processes)]
    if all(path.exists() for path in told):
        found.ranks = [json.loads(path.read_text(encoding="utf-8")) for path in told]
    elif not ended:
        found.ended = "ended without a word of what it found"
    if (folder / "calls.0.json").exists():
        found.calls = json.loads((folder / "calls.0.json").read_text(encoding="utf-8"))
    return found


# ---- judging ----


@dataclass
class Finding:
    """What one program came to."""

    program: Program
    runs: dict[str, Run] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """Why it is no good."""
    skipped: str = ""
    limit: float = 0.0
    """What losses were allowed to differ by."""
    own_gap: float | None = None
    """NCCL's from itself, where it was asked."""

    @property
    def what(self) -> str:
        """The program with its version, as it says itself."""
        told = [run.ranks[0]["what"] for run in self.runs.values() if run.ranks]
        return told[0] if told else self.program.name

    def gaps(self) -> list[float]:
        """Of the losses by both; empty where there are none."""
        runs = [self.runs.get(way) for way in ("nccl", "braid")]
        return gaps(*runs) if all(run and run.ranks for run in runs) else []


def judge(found: Finding, args: argparse.Namespace) -> None:
    """Fills in what was wrong."""
    for way, run in found.runs.items():
        if run.ended:
            found.wrong.append(f"{way}: {run.ended}")
        if run.total("wrong"):
            found.wrong.append(f"{way}: {run.total('wrong')} wrong results")
    between = found.gaps()
    if between and max(between) > found.limit:
        found.wrong.append(f"losses differ by {max(between):.3g}, allowed {found.limit:g}")
    braid = found.runs["braid"]
    falls = [losses[-1] < losses[0] for losses in braid.losses() if losses]
    if not all(falls):
        found.wrong.append("braid: the loss does not fall")
    if not args.cpu and not sum(braid.calls.get("taken over", {}).values()):
        found.wrong.append("braid took nothing over")


def tried(program: Program, args: argparse.Namespace, end_at: float) -> Finding:
    """One program: NCCL, braid, and NCCL again where the two disagree."""
    found = Finding(program)
    if importlib.util.find_spec(program.needs) is None:
        found.skipped = f"{program.needs} is not installed"
        return found
    if args.cpu and not program.on_cpus:
        found.skipped = "it needs GPUs"
        return found
    for way in ("nccl", "braid"):
        left_s = end_at - time.monotonic()
        if left_s < LEAST_S:
            found.skipped = f"no time left, {args.budget:.0f} s were given"
            return found
        found.runs[way] = started(program, way, args, min(args.limit, left_s))
    found.limit = 0.0 if args.ranks == 2 else CLOSE
    between = found.gaps()
    left_s = end_at - time.monotonic()
    if between and max(between) > found.limit and left_s > LEAST_S:
        again = started(program, "nccl again", args, min(args.limit, left_s))
        if again.ranks:
            found.own_gap = max(gaps(found.runs["nccl"], again))
            found.limit = CLOSE if found.own_gap else found.limit
    judge(found, args)
    return found


# ---- telling ----


def sentences(found: Finding, ranks: int) -> Iterator[str]:
    """What was seen, the most important first."""
    yield from found.wrong
    between, braid = found.gaps(), found.runs.get("braid", Run())
    if between:
        equal = sum(gap == 0 for gap in between)
        losses = braid.losses()[0]
        yield (
            f"losses of {ranks} ranks equal to the bit in {equal} of {len(between)} steps, largest "
            f"gap {max(between):.3g}, {losses[0]:.4f} to {losses[-1]:.4f}"
        )
    if found.own_gap is not None:
        yield f"NCCL against itself {found.own_gap:.3g}"
    if braid.total("checked"):
        yield f"{braid.total('checked')} results with braid, {braid.total('wrong')} wrong"
    times = {way: run.times_us() for way, run in found.runs.items()}
    for name, us in times.get("braid", {}).items():
        ours, theirs = (statistics.median(t) for t in (us, times["nccl"].get(name, us)))
        yield f"{name} {theirs / 1e3:.3f} ms by NCCL, {ours / 1e3:.3f} by braid"
    for what, calls in braid.calls.items():
        each = ", ".join(f"{op} {n}" for op, n in calls.items())
        yield f"{what} by rank 0: {each or 'nothing'}"


def line_of(found: Finding, ranks: int) -> str:
    """The program's line."""
    if found.skipped:
        return f"{found.program.name}: skipped: {found.skipped}"
    seconds = ", ".join(f"{way} {run.seconds:.0f} s" for way, run in found.runs.items())
    verdict = "WRONG" if found.wrong else "right"
    return f"{found.what}: {verdict}: {'; '.join(sentences(found, ranks))} ({seconds})"


def tail_of(path: Path, lines: int = 25) -> str:
    """The end of a log."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def show(found: Finding, args: argparse.Namespace) -> None:
    """The line, and the end of a log of what went wrong."""
    print(line_of(found, args.ranks), flush=True)
    for way, run in found.runs.items():
        if run.ended or run.total("wrong"):
            path = args.logs / f"{found.program.name}.{way}.log"
            print(f"---- {path}\n{tail_of(path)}\n----", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", "-n", type=int, default=2)
    parser.add_argument("--only", default="", help="names: " + ",".join(p.name for p in PROGRAMS))
    parser.add_argument("--logs", type=Path, default=Path("/tmp/apps"))
    parser.add_argument("--limit", type=float, default=120, help="seconds of one run of a program")
    parser.add_argument("--budget", type=float, default=540, help="seconds of everything")
    parser.add_argument("--json", type=Path, help="write a record here; - is standard output")
    parser.add_argument("--commit", default="", help="of a tree without git, for the record")
    parser.add_argument("--cpu", action="store_true", help="tiny, between CPUs; braid is not there")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name]
    for name in names:
        if name not in {program.name for program in PROGRAMS}:
            parser.error(f"--only: asked for '{name}', there is {[p.name for p in PROGRAMS]}")
    args.programs = [p for p in PROGRAMS if not names or p.name in names]
    if not args.cpu and not DROP_IN.exists():
        parser.error(f"{DROP_IN} is not there: build it first")
    return args


def main() -> int:
    args = arguments()
    args.logs.mkdir(parents=True, exist_ok=True)
    end_at = time.monotonic() + args.budget
    findings = []
    for program in args.programs:
        findings.append(tried(program, args, end_at))
        show(findings[-1], args)
    if args.json:
        from sheet_of_apps import record_of  # what it imports is not needed to run programs

        record_of(findings, args).save(args.json)
    if all(found.skipped for found in findings):
        print("nothing was compared", file=sys.stderr)
        return 1
    return 1 if any(found.wrong for found in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
