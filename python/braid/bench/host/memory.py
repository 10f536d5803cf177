"""Whether the buffers of a case between CPUs fit, asked before ranks start. Pure but for two reads.

Without it every rank would end with a trace of its own, or the machine would end one of them.
"""

import resource
from pathlib import Path

from braid.cases.host import measured_bytes
from braid.sizes import format_size

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def needed_bytes(op: str, total_bytes: int, dtype: str, ranks: int) -> int:
    """Of one rank, at its most: either while the result that it must have is made out of every
    rank's data in turn, or while what it got is compared with that, byte by byte.
    """
    whole = measured_bytes(op, total_bytes, dtype, ranks)
    sent = whole // ranks if op == "all_gather" else whole
    got = whole // ranks if op == "reduce_scatter" else whole
    return max(2 * sent + got, sent + 3 * got)


def why_not(op: str, total_bytes: int, dtype: str, ranks: int) -> str:
    """What the case needs and what there is; "" where it fits."""
    each = needed_bytes(op, total_bytes, dtype, ranks)
    has, limit = free_bytes(), _address_limit()
    case = f"{op} of {format_size(total_bytes)}"
    if each * ranks > has:
        needs = f"{format_size(each * ranks)} on {ranks} ranks"
        return f"{case} needs {needs}, and {format_size(has)} of memory are free"
    if limit is not None and each > limit:
        return f"{case} needs {format_size(each)} of every rank, ulimit -v is {format_size(limit)}"
    return ""


def free_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """What the kernel says that programs can still have, and no more than a container may take."""
    rows = (line.split() for line in _text(proc / "meminfo").splitlines())
    free = next((int(row[1]) * 1024 for row in rows if row[:1] == ["MemAvailable:"]), 1 << 62)
    most, used = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    if most.isdigit() and used.isdigit():
        free = min(free, max(int(most) - int(used), 0))
    return free


def _text(path: Path) -> str:
    """ "" where there is no such file, or none for us."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _address_limit() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
