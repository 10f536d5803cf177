"""Which of nccl-tests' programs are run how: the plan of scripts/nccl_tests.py. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from braid.plan.formulas.collectives import PER_RANK
from braid.saved.table import op_named

NCCL, BRAID = "nccl", "braid"
TAKEN = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall")
"""Whose calls braid takes over."""
OPS = tuple(op_named(program) for program in TAKEN)
"""The same as BRAID_NCCL_OPS names them."""
HANDED_ON = ("reduce", "gather", "scatter", "sendrecv", "hypercube", "alltoallv")
"""Whose calls go through braid's library to NCCL."""

ADDS = ("all_reduce", "reduce_scatter")
PARTS = ("check", "large", "graph", "shared", "windows", "time", "product")
DEFAULT_PARTS = PARTS[:-1]

_CHECKED_ONCE = "-n 1 -w 0 -c 1"
_ALL = "-d all -o all"
_WINDOWS = "-R 2"  # buffers in windows of symmetric memory
_TIMED = "-n 20 -w 5 -c 1 -N 2 -d bfloat16"


@dataclass(frozen=True)
class Step:
    """One program with its arguments, and who stands under NCCL's name."""

    part: str
    program: str
    """Without _perf."""
    arguments: str
    who: str
    is_one_process: bool = False
    """One process with all GPUs, else one for each."""
    keeps_times: bool = False


def plan(ranks: int, rounds: int) -> Iterator[Step]:
    """Every step, part by part."""
    for program in (*TAKEN, *HANDED_ON):  # every type and reduction, 8 B to 128 MiB
        sizes = f"-b 8 -e 128M -f {4 if program in TAKEN else 64}"
        root = "-r -1 " if program == "broadcast" else ""
        yield Step("check", program, f"{sizes} {root}{_CHECKED_ONCE} {_ALL}", BRAID)
    for program in TAKEN:  # 512 MiB and 4 GiB
        sizes = f"-b 512M -e 4G -f 8 {_CHECKED_ONCE}"
        yield Step("large", program, f"{sizes} -d all -o sum", BRAID)
        if program in ADDS:
            yield Step("large", program, f"{sizes} -d bfloat16 -o all", BRAID)
            yield Step("product", program, f"{sizes} {_ALL}", BRAID)
    for program in TAKEN:  # in CUDA graphs, each launched twice
        sizes = "-b 8 -e 128M -f 16 -G 2 -n 2 -w 0 -c 1"
        yield Step("graph", program, f"{sizes} {_ALL}", BRAID)
    for program in TAKEN:  # one process with all GPUs
        sizes = f"-g {ranks} -b 8 -e 128M -f 16"
        yield Step("shared", program, f"{sizes} {_CHECKED_ONCE} {_ALL}", BRAID, True)
        yield Step("shared", program, f"{sizes} -G 2 -n 2 -w 0 -c 1 -d bfloat16", BRAID, True)
    for program in TAKEN:
        sizes = f"{_WINDOWS} -b 8 -e 128M -f 16"
        yield Step("windows", program, f"{sizes} {_CHECKED_ONCE} -d all -o sum", BRAID)
        for who in (NCCL, BRAID):
            sizes = f"{_WINDOWS} -b 1M -e 1G -f 4 {_TIMED}"
            yield Step("windows", program, sizes, who, keeps_times=True)
    for turn in range(rounds):
        for program in TAKEN:
            yield from _timed(program, ranks, turn)


def is_in_windows(step: Step) -> bool:
    """Whether its buffers are in windows."""
    return _WINDOWS in step.arguments


def _timed(program: str, ranks: int, turn: int) -> Iterator[Step]:
    """NCCL and braid in turn, the first one first in every other round."""
    kib = ranks if program in PER_RANK else 1
    sizes = [f"-b {kib}K -e {kib}G -f 4 {_TIMED}"]
    if program in (*ADDS, "all_gather"):
        sizes.append(f"-b {kib}K -e {4 * kib}M -f 4 -G 5 {_TIMED}")
    for arguments in sizes:
        for who in (NCCL, BRAID) if turn % 2 == 0 else (BRAID, NCCL):
            yield Step("time", program, arguments, who, keeps_times=True)
