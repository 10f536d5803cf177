"""The suite `flexlink`: which cases, and what each figure must reach. Pure.

The figures are those of the FlexLink work on GPUs: every operation over NVLink and the host link
together, against NCCL as it comes, NCCL at its best and torch's symmetric memory.
"""

from braid.bench.contestant import VARIANTS
from braid.bench.request import Task
from braid.cases.operations import OPS

RANK_COUNTS = (2, 4, 8)
LARGE, MIDDLE, HUGE = 256 << 20, (16 << 20, 64 << 20), 1 << 30
SMALL = tuple(1 << k for k in range(10, 23))  # 1 KiB to 4 MiB
SMALL_OPS = ("all_reduce", "all_gather", "reduce_scatter")
OTHER_SMALL = (8 << 10, 256 << 10, 4 << 20)  # of the operations without a figure there
REPEATS = 1000
SMS_OPS, SMS_AIM = ("all_gather", "all_reduce"), 16
CAP = "nvlink:147"  # GB/s: what NVLink gives on H800
CAPPED_OPS = ("all_gather", "all_reduce")

LARGE_AIMS = {
    "all_gather": {2: 1.60, 4: 1.30, 8: 1.18},
    "all_reduce": {2: 1.32, 4: 1.20, 8: 1.15},
    "reduce_scatter": {2: 1.5, 4: 1.2, 8: 1.1},
    "all_to_all": {2: 1.4, 4: 1.25, 8: 1.15},
    "broadcast": {2: 1.15, 4: 1.15, 8: 1.15},
}
"""Ratio to NCCL's default at 256 MiB."""
MIDDLE_AIM = 1.1
BEST_AIM = 1.0
"""Ratio to NCCL at its best."""
SMALL_AIM = 0.8
"""Of the time of the best of NCCL and torch's symmetric memory, in a graph."""
DROP_IN_AIMS = {"all_reduce": 0.9, "all_gather": 0.8, "reduce_scatter": 0.8}
"""Of the time of MSCCL++ in NCCL's place, in a graph."""
NEVER_WORSE = 0.98
SUM_AIMS = {op: 0.97 if op == "all_gather" else 0.94 for op in OPS}
"""Both links together by the sum of each alone."""
ADDED_AIMS = {2: 0.08, 4: 0.10, 8: 0.08}
"""What the host link adds to NVLink alone, all_gather."""
CAPPED_AIMS = {
    "all_gather": {2: 0.24, 4: 0.28, 8: 0.27},
    "all_reduce": {2: 0.20, 4: 0.20, 8: 0.15},
}
"""The same with NVLink held to H800's rate."""


def tasks(baselines: frozenset[str]) -> tuple[Task, ...]:
    """Everything for one rank count, the most important first."""
    nccl = baselines & {"nccl", "nccl-best"}
    large = [Task(op, LARGE, "eager", nccl | frozenset(VARIANTS)) for op in OPS]
    middle = [Task(op, size, "eager", nccl) for op in OPS for size in MIDDLE]
    small = [Task(op, size, "graph", baselines) for op in SMALL_OPS for size in SMALL]
    others = [
        Task(op, size, "graph", nccl) for op in OPS if op not in SMALL_OPS for size in OTHER_SMALL
    ]
    huge = [Task(op, HUGE, "eager", baselines & {"nccl"}) for op in OPS]
    return (*large, *middle, *small, *others, *huge)


def capped_tasks() -> tuple[Task, ...]:
    """For the run whose NVLink is held to H800's rate."""
    return tuple(Task(op, LARGE, "eager", frozenset({"links"})) for op in CAPPED_OPS)
