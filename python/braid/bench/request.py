"""What a GPU run was asked for, and the cases that follow from it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from braid.bench.contestant import BASELINES, MSCCLPP, VARIANTS
from braid.errors import InvalidArgument

LAUNCHES = 2
MODES = ("auto", "eager", "graph", "both")
_GRAPH_UP_TO = 4 << 20  # auto: from here on the host's part of a call does not count
DEFAULT_SIZES = (1 << 20, 16 << 20, 64 << 20, 256 << 20)


@dataclass(frozen=True)
class Task:
    """One case to measure, and who takes part beside braid."""

    op: str
    own_bytes: int
    """Asked for: see braid.cases.gpu."""
    mode: str
    groups: frozenset[str]


@dataclass(frozen=True)
class Request:
    """A run on the GPUs of this machine."""

    tasks: tuple[Task, ...]
    dtype: str = "bfloat16"
    samples: int = 15
    time_budget_s: float = 90.0
    step_timeout_s: float = 60.0
    """Of every step: opening a library, checking a case, one sample."""
    repeats: int = 0
    """Calls of a float sum with random shares whose bits are compared."""
    blocks_of: tuple[str, ...] = ()
    """Operations whose thread blocks a profiler counts, at blocks_bytes."""
    blocks_bytes: int = 0
    options: dict[str, str] = field(default_factory=dict)
    """braid.init's options."""
    json_path: Path | None = None
    svg_path: Path | None = None
    commit: str = ""
    """Of a tree without git."""
    mscclpp: str = ""
    """The library of MSCCL++ that has NCCL's names; "": it takes no part."""
    quiet: bool = False
    """No table at the end: somebody else reads the record."""
    by_rank: bool = False
    """Print every rank's times, even where none is late."""
    calls: int = 0
    """Per sample; 0: as many as make it last long enough."""
    launches: int = LAUNCHES
    """Of a graph in a sample."""
    root: int | None = None
    """Broadcast's, if one was asked for."""

    @property
    def groups(self) -> set[str]:
        """Everybody who takes part somewhere."""
        return set().union(*(task.groups for task in self.tasks))


def check_root(root: int | None, ranks: int) -> None:
    """One of the ranks, if any was asked for."""
    if root is not None and not 0 <= root < ranks:
        raise InvalidArgument(f"bench: --root: asked for {root}, ranks are 0 to {ranks - 1}")


def modes_for(nbytes: int, mode: str) -> tuple[str, ...]:
    """How a size is measured."""
    if mode == "both":
        return ("eager", "graph")
    if mode == "auto":
        return ("graph",) if nbytes <= _GRAPH_UP_TO else ("eager",)
    return (mode,)


def mode_of(mode: str, launches: int | None) -> str:
    """`mode` where so many launches of a graph are asked for; 0: none. ValueError if they
    contradict each other.
    """
    if launches is None:
        return mode
    if mode not in (("auto", "graph", "both") if launches else ("auto", "eager")):
        raise ValueError(f"--cudagraph {launches} and --mode {mode} contradict each other")
    if mode == "auto":
        return "graph" if launches else "eager"
    return mode


def tasks_for(
    ops: Iterable[str], sizes: Iterable[int], mode: str, groups: Iterable[str]
) -> tuple[Task, ...]:
    """Every operation at every size."""
    chosen = frozenset(groups)
    return tuple(
        Task(op, size, how, chosen) for op in ops for size in sizes for how in modes_for(size, mode)
    )


def parse_groups(baselines: str, variants: str, *, has_mscclpp: bool = False) -> frozenset[str]:
    """Comma lists, "all" and "none". ValueError names the word that is not known."""
    named = frozenset({MSCCLPP} if has_mscclpp else ())
    chosen = _words(baselines, BASELINES, "--baselines", "baseline")
    chosen += _words(variants, VARIANTS, "--variants", "variant")
    return named | frozenset(chosen)


def _words(text: str, allowed: tuple[str, ...], option: str, what: str) -> list[str]:
    if text in ("none", ""):
        return []
    words = list(allowed) if text == "all" else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in allowed:
            known = ", ".join(allowed)
            raise ValueError(f"{option}: '{word}' is no {what}; braid has {known}, all, none")
    return words
