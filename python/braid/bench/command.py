"""`braid bench` as the command line asks for it; on GPUs settings are checked, ranks started."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from braid import launched
from braid.bench import cut, gpus
from braid.bench.no_multicast import forbid_multicast
from braid.bench.request import (
    DEFAULT_SIZES,
    LAUNCHES,
    MODES,
    Request,
    check_root,
    mode_of,
    parse_groups,
    tasks_for,
)
from braid.cases.gpu import DTYPES, GpuCase
from braid.cases.operations import OPS
from braid.launch import launch

_GRACE_S = 30.0  # after Ctrl-C: the case at hand ends, and the record is written
_BUDGET_S = 90.0


class Refused(Exception):  # noqa: N818 - it is the user's to change
    """What was asked cannot be done here; says which option, and why."""


@dataclass(frozen=True)
class Asked:
    """The options, as they were written."""

    device: str
    suite: str
    ops: list[str]
    sizes: list[int]
    ranks: int
    dtype: str
    redop: str
    mode: str
    baselines: str
    variants: str
    samples: int
    time_budget_s: float
    options: dict[str, str]
    json_path: Path | None
    svg_path: Path | None
    commit: str
    quiet: bool
    host_only: list[str]
    """Options given that only make sense between CPUs."""
    mscclpp: Path | None = None
    by_rank: bool = False
    calls: int = 0
    launches: int | None = None
    """Of a CUDA graph in a sample; 0: no graphs; None: as the mode has it."""
    root: int | None = None
    against: str = ""
    """Used only between CPUs, as are warm_up_calls and checks."""
    warm_up_calls: int = 2
    checks: int = 1
    gpu_only: tuple[str, ...] = ()
    """Options given that only make sense on GPUs, beside suites, MSCCL++ and graphs."""


def check_words(asked: Asked) -> None:
    """Words that mean nothing anywhere, before it is asked what this machine has."""
    if asked.mode not in MODES:
        raise Refused(f"--mode: '{asked.mode}' is no mode; braid has {', '.join(MODES)}")
    _groups_of(asked)
    if asked.suite:
        from braid.bench.suite import check_suite

        check_suite(asked.suite)


def _groups_of(asked: Asked) -> frozenset[str]:
    """Who takes part beside braid."""
    try:
        return parse_groups(asked.baselines, asked.variants, has_mscclpp=asked.mscclpp is not None)
    except ValueError as error:
        raise Refused(str(error)) from None


def gpus_to_use(asked: Asked) -> int:
    """How many GPUs this process sees for `asked`; 0: it is for the CPU twin. Refused says why
    GPUs that were asked for cannot be used.
    """
    must = asked.device == "gpu" or bool(asked.suite or asked.mscclpp)
    if asked.device == "cpu" or (asked.host_only and not must):
        if asked.suite:
            raise Refused("--suite: the suites are for GPUs; leave --device cpu out")
        if asked.mscclpp:
            raise Refused("--mscclpp: it runs on GPUs; leave --device cpu out")
        return 0
    found = gpus.find()
    if found.count >= gpus.needed(2):
        if asked.host_only and must:
            raise Refused(f"{asked.host_only[0]}: this is for links between CPUs")
        return found.count
    if must:
        why = found.why_none or "this machine has one GPU, and a collective needs two"
        raise Refused(f"GPUs were asked for, but {why}")
    return 0


def request_of(asked: Asked) -> Request:
    """What the ranks of one launch measure. Refused names the option that is wrong."""
    check_words(asked)
    if asked.redop != "sum":
        raise Refused("--op: baselines on GPUs add; leave --op out, or use --device cpu")
    dtype = asked.dtype or "bfloat16"
    if dtype not in DTYPES:
        raise Refused(f"--dtype: '{dtype}' is none of {', '.join(DTYPES)}")
    groups = _groups_of(asked)
    try:
        mode = mode_of(asked.mode, asked.launches)
    except ValueError as error:
        raise Refused(str(error)) from None
    tasks = tasks_for(asked.ops or OPS, asked.sizes or DEFAULT_SIZES, mode, groups)
    return Request(
        tasks=tasks,
        dtype=dtype,
        samples=asked.samples,
        time_budget_s=asked.time_budget_s or _BUDGET_S,
        options={"links": "shm", **asked.options},
        json_path=asked.json_path,
        svg_path=asked.svg_path,
        commit=asked.commit,
        mscclpp=library_of(asked),
        quiet=asked.quiet,
        by_rank=asked.by_rank,
        calls=asked.calls,
        launches=asked.launches or LAUNCHES,
        root=asked.root,
    )


def library_of(asked: Asked) -> str:
    """Where MSCCL++ is, in full: a name without a folder would be looked for elsewhere."""
    if asked.mscclpp is None:
        return ""
    if not os.path.isfile(asked.mscclpp):
        raise Refused(f"--mscclpp: there is no file {asked.mscclpp}")
    return str(asked.mscclpp.resolve())


def run(asked: Asked, count: int) -> int:
    """Starts one process per GPU, or is one of them. The exit code of the whole."""
    if launched.is_rank():
        return _be_rank(asked)
    if asked.ranks > gpus.MOST:
        raise Refused(f"--ranks: asked for {asked.ranks}, GPUs of one node are {gpus.MOST}")
    if not 2 <= (asked.ranks or count) <= count:
        raise Refused(
            f"--ranks: asked for {asked.ranks}, this machine has {count} GPUs; one process"
            " drives one GPU, and a collective needs two"
        )
    if asked.suite:
        from braid.bench import suite

        return suite.run(asked, count)
    request = request_of(asked)  # wrong arguments are found before anything starts
    ranks = asked.ranks or min(count, gpus.MOST)
    check_root(asked.root, ranks)
    # Each once: a case may be measured eager and in graphs.
    wanted = dict.fromkeys((task.op, task.own_bytes) for task in request.tasks)
    cut.say((op, size, GpuCase.of(op, size, request.dtype, ranks).own_bytes) for op, size in wanted)
    return start(ranks, [])


def start(ranks: int, more: Sequence[str]) -> int:
    """The same command on `ranks` ranks, with some options written anew."""
    command = [sys.executable, "-m", "braid.cli", *sys.argv[1:], *more]
    with gpus.starting_ranks():
        return launch(command, ranks, grace_s=_GRACE_S)


def _be_rank(asked: Asked) -> int:
    forbid_multicast()
    from braid.bench.session import run_rank

    if not asked.suite:
        check_root(asked.root, launched.size())
        return run_rank(request_of(asked))
    from braid.bench import suite
    from braid.bench.flexlink_rows import rows

    return run_rank(
        suite.request_of(asked),
        None if asked.quiet else lambda record: suite.show(rows(record)),
    )
