"""Readers: each turns one kind of source into facts. load() finds out which a file is."""

import re
import sys
from dataclasses import replace
from pathlib import Path

from braid.topo import document
from braid.topo.check import checked
from braid.topo.errors import BadTopology
from braid.topo.facts import Machine
from braid.topo.read import hwloc, nccl, rocm, smi

_MAX_BYTES = 64 << 20
_KNOWN = (
    "nvidia-smi topo -m text, NCCL or hwloc XML, rocm-smi --showtopo text, or braid topo --json"
)


def load(path: Path) -> Machine:
    """The machine in a saved file, in a folder that holds a machine's /sys, or ("-") on standard
    input.

    BadTopology, with the path and in one line, when it cannot be read.
    """
    try:
        if path.is_dir():
            from braid.topo.read import live

            return live.read_tree(path)
        data = _bytes_of(path)
        if len(data) > _MAX_BYTES:
            raise BadTopology(f"more than {_MAX_BYTES >> 20} MiB, which is no topology")
        return read_text(data.decode("utf-8", errors="replace"))
    except OSError as error:
        raise BadTopology(f"{path}: {error.strerror or error}") from error
    except BadTopology as error:
        raise BadTopology(f"{path}: {error}") from error


def _bytes_of(path: Path) -> bytes:
    """No more than one byte above the limit: what is named may have no end (/dev/zero)."""
    if str(path) == "-":
        return sys.stdin.buffer.read(_MAX_BYTES + 1)
    with path.open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def read_text(text: str) -> Machine:
    """The machine that the text describes, whatever wrote it."""
    if not text.strip():
        raise BadTopology("the file is empty")
    return checked(_read(text))


def _read(text: str) -> Machine:
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        is_hwloc = re.search(r"<topology\b", start[:2000]) is not None
        return hwloc.read(start) if is_hwloc else nccl.read(start)
    if start.startswith(("{", "[")):
        return document.read(start)
    if rocm.looks_right(text):
        return rocm.read(text)
    if smi.looks_right(text):
        return smi.read(text)
    raise BadTopology(f"no topology that braid knows: it reads {_KNOWN}")


def with_model(machine: Machine, model: str) -> Machine:
    """The machine with the name of its GPUs, for sources that do not tell it."""
    return replace(machine, gpus=[replace(gpu, model=gpu.model or model) for gpu in machine.gpus])
