"""What the launcher around this process told it: its rank, how many there are, its place on the
node.

Who is asked first is as in src/group/identity.cc: mpirun may have been started in an allocation of
Slurm's, whose batch script has a rank of its own.
"""

import os
from dataclasses import dataclass

from braid.errors import InvalidArgument


@dataclass(frozen=True)
class _Launcher:
    """Its names for the three numbers."""

    rank: str
    size: str
    local_rank: str


_RANK = "RANK"
_SLURM_RANK, _SLURM_STEP_SIZE = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"
_LAUNCHERS = (
    _Launcher(_RANK, "WORLD_SIZE", "LOCAL_RANK"),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    _Launcher(_SLURM_RANK, "SLURM_NTASKS", "SLURM_LOCALID"),
    _Launcher("PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK"),
)


def _launcher() -> _Launcher | None:
    return next((one for one in _LAUNCHERS if one.rank in os.environ), None)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise InvalidArgument(f"{name}: asked for a number from the launcher, found '{text:.40}'")
    return int(text)


def has_launcher() -> bool:
    """Whether somebody gave this process a rank, be it the only one."""
    return _launcher() is not None


def is_rank() -> bool:
    """Whether this process is one of several, or of those that `braid run` or torchrun started.

    The only task of a Slurm step is none: an interactive shell has its variables, and what is typed
    there starts its own ranks; nor is a batch script, which is no task of a step.
    """
    launcher = _launcher()
    if launcher is None:
        return False
    size = _SLURM_STEP_SIZE if launcher.rank == _SLURM_RANK else launcher.size
    return launcher.rank == _RANK or os.environ.get(size, "1") != "1"


def rank() -> int:
    """0 without a launcher."""
    launcher = _launcher()
    return _number(launcher.rank) if launcher else 0


def words() -> str:
    """ "rank 3" before what a rank says, "" for who is none."""
    launcher = _launcher()
    return f"rank {os.environ[launcher.rank]:.20}" if launcher and is_rank() else ""


def size() -> int:
    """1 without a launcher. InvalidArgument where it does not say."""
    launcher = _launcher()
    return _number(launcher.size) if launcher else 1


def local_rank() -> int:
    """On this node; the rank where nobody says, which is right on one node."""
    launcher = _launcher()
    if launcher is None or launcher.local_rank not in os.environ:
        return rank()
    return _number(launcher.local_rank)
