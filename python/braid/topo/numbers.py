"""Numbers and lists as tools print them.

Everything here takes text from outside: what does not fit is None or BadTopology, never an
exception of Python's own, and no list of processors is ever written out, so that a damaged
"0-999999999" costs nothing.
"""

import math
import re

from braid.topo.errors import BadTopology

_LARGEST = 1 << 50
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d{1,15})?")
_ADDRESS = re.compile(
    r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", re.IGNORECASE
)
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def number(text: str | None) -> float | None:
    """The first number in "32.0 GT/s PCIe", "400 Gb/sec (4X NDR)"; None when there is none."""
    match = _NUMBER.search(text or "")
    value = float(match[0]) if match else math.inf
    return value if abs(value) <= _LARGEST else None


def whole(text: str | None) -> int | None:
    """The text as an integer, decimal; None when it is something else ("N/A")."""
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"[+-]?\d{1,15}", text) else None


def node(text: str | None) -> int | None:
    """A NUMA node; -1 and "N/A" are none. Of a list ("0,2-17"), the first."""
    first = re.match(r"\s*(\d{1,9})(?:$|[,\s-])", text or "")
    return int(first[1]) if first else None


def address(text: str | None) -> str | None:
    """A PCI address as sysfs writes it: "00000000:1B:00.0" and "1b:00.0" are "0000:1b:00.0"."""
    match = _ADDRESS.fullmatch((text or "").strip())
    if match is None:
        return None
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def spans(cpus: str) -> list[tuple[int, int]] | None:
    """First and last of every run in "0-51,104-155"; None when it is no such list."""
    found = []
    for part in cpus.split(",") if cpus else []:
        match = _SPAN.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            return None
        found.append((int(match[1]), int(match[2] or match[1])))
    return found


def count_cpus(cpus: str) -> int:
    """How many processors a list has."""
    return sum(last - first + 1 for first, last in spans(cpus) or [])


def cpulist_of_mask(mask: str) -> str:
    """ "ff,00ffffff" (words of 32 bits, highest first) as "0-23,32-39"."""
    words = [word.strip().removeprefix("0x") for word in mask.split(",")]
    if len(words) > 1024 or not all(re.fullmatch(r"[0-9a-fA-F]{0,8}", word) for word in words):
        raise BadTopology(f"'{mask:.40}' is no mask of processors")
    bits = "".join(f"{int(word or '0', 16):032b}" for word in words)[::-1]
    runs = [(m.start(), m.end() - 1) for m in re.finditer("1+", bits)]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
