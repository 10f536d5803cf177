"""DeepEP itself as a baseline: where a package `deep_ep` is installed that is not the stand-in.

It is built outside this project (docs/measured/moe.md says how) and called by the names that it has
in v1.2.1, which later versions of its first interface and `sgl-deep-ep` have, too.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import braid
from braid.bench.moe.routings import Shape

MODES = ("no", "normal", "both")
SMS = (24, 20)
"""Multiprocessors of its normal calls: what its tables were measured with, and its default."""
MOST_LOW_LATENCY = 256
"""Tokens of a rank: its buffers hold a row for each of them, expert and rank, twice."""
_RANKS = (2, 4, 8)  # of one node
_HIDDEN = (2048, 2560, 4096, 5120, 6144, 7168, 8192)  # for which its low-latency kernels are made
_ROWS = 4  # all ranks' rows of an expert must be a multiple of it


class _NotRacedError(Exception):
    """Why, in words for a record."""


@dataclass(frozen=True)
class Package:
    """One that is installed."""

    module: Any
    version: str


@dataclass
class Entry:
    """How DeepEP takes part in a run."""

    deepep: "DeepEp | None" = None
    said: str = ""
    """What was raced, or why not."""
    versions: dict[str, str] = field(default_factory=dict)


def find() -> Package:
    """The package that this process imports. _NotRacedError: none, the stand-in, or not loaded."""
    spec = importlib.util.find_spec("deep_ep")
    if spec is None or spec.origin is None:
        raise _NotRacedError("no package deep_ep is installed")
    if Path(spec.origin).resolve().is_relative_to(Path(braid.__file__).resolve().parent):
        raise _NotRacedError("the package deep_ep is braid's stand-in")
    try:
        module = importlib.import_module("deep_ep")
    except Exception as error:  # its library misses a symbol or another library
        raise _NotRacedError(_words(error)) from error
    return Package(module, _version(module))


def _version(module: Any) -> str:
    """Of the distribution that brought it, which may have another name."""
    names = metadata.packages_distributions().get("deep_ep", ())
    found = [f"{name} {metadata.version(name)}" for name in sorted(set(names))]
    return ", ".join(found) or str(getattr(module, "__version__", "of unknown version"))


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _agree(comm: braid.Comm, why: str) -> str:
    """The first rank's reason, of all that have one: nobody goes on alone. Collective."""
    said = comm.all_gather_object(why)
    return next((f"rank {rank}: {each}" for rank, each in enumerate(said) if each), "")


def enter(
    comm: braid.Comm, mode: str, shape: Shape, tokens: Sequence[int], group: Any = None
) -> Entry:
    """Loads it and makes its buffers, for `tokens` at most, among the ranks of a group of torch's
    (None: of the default one). Collective; every failure of Python is words on all ranks. What
    ends a process, as a kernel's trap does, ends the run: low latency is asked for by mode "both".
    """
    if mode == "no":
        return Entry(said="not raced: not asked for")
    package, why = None, ""
    try:
        if comm.size not in _RANKS:
            raise _NotRacedError(f"it has kernels for 2, 4 or 8 ranks, not for {comm.size}")
        package = find()
    except _NotRacedError as error:
        why = str(error)
    if (why := _agree(comm, why)) or package is None:
        return Entry(said=f"not raced: {why}")
    if group is None:
        import torch.distributed as dist

        group = dist.group.WORLD
    deepep = DeepEp(package, shape, comm.size, group)
    versions = {"deep_ep": package.version}
    if why := _agree(comm, _failure(deepep.make_normal)):
        return Entry(said=f"not raced: {why}", versions=versions)
    said = "normal mode"
    few = [n for n in tokens if n <= MOST_LOW_LATENCY]
    if mode == "both" and few and shape.hidden in _HIDDEN:
        why = _agree(comm, _failure(lambda: deepep.make_low_latency(max(few))))
        said += f"; low latency not raced: {why}" if why else ", low latency"
        if why:
            deepep.low = None
    return Entry(deepep, said, versions)


def _failure(make: Any) -> str:
    try:
        make()
    except Exception as error:  # an assertion of its C++ is a RuntimeError, of its Python its own
        return _words(error)
    return ""


class DeepEp:
    """Its buffers, of all cases of a run: what they stand on begins once in a process."""

    def __init__(self, package: Package, shape: Shape, size: int, group: Any) -> None:
        self._class, self._shape, self._size, self._group = (
            package.module.Buffer, shape, size, group,
        )  # fmt: skip
        self.normal: Any = None
        self.low: Any = None

    def make_normal(self) -> None:
        row = 2 * self._shape.hidden
        hints = [
            config.get_nvl_buffer_size_hint(row, self._size)
            for sms in SMS
            for config in self.configs(sms)
        ]
        self.normal = self._class(self._group, max(hints), explicitly_destroy=True)

    def make_low_latency(self, tokens: int) -> None:
        shape, size = self._shape, self._size
        hint = self._class.get_low_latency_rdma_size_hint(
            self.rows_for(tokens), shape.hidden, size, shape.num_experts
        )
        self.low = self._class(
            self._group, 0, hint, low_latency_mode=True,
            num_qps_per_rank=shape.num_experts // size, explicitly_destroy=True,
        )  # fmt: skip

    def configs(self, sms: int) -> tuple[Any, Any]:
        """Its own for dispatch and for combine, with so many multiprocessors."""
        self._class.set_num_sms(sms)
        return (
            self._class.get_dispatch_config(self._size),
            self._class.get_combine_config(self._size),
        )

    def rows_for(self, tokens: int) -> int:
        """The least `num_max_dispatch_tokens_per_rank` that it takes for so many tokens."""
        rows = tokens
        while rows * self._size % _ROWS:
            rows += 1
        return rows

    def has_low_latency(self, tokens: int) -> bool:
        return self.low is not None and tokens <= MOST_LOW_LATENCY

    def begin(self, tokens: int) -> None:
        """Before calls with another number of rows: flags lie elsewhere then. Collective."""
        if self.has_low_latency(tokens):
            self.low.clean_low_latency_buffer(
                self.rows_for(tokens), self._shape.hidden, self._shape.num_experts
            )

    def close(self) -> None:
        for buffer in (self.low, self.normal):
            if buffer is not None:
                buffer.destroy()
        self.low = self.normal = None
