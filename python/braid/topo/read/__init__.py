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
from braid.topo.read.plain import decoded, plain

_MAX_BYTES = 64 << 20
_BEFORE_ELEMENTS = (("<!--", "-->"), ("<?", "?>"), ("<!", ">"))
_KNOWN = (
    "nvidia-smi topo -m text, NCCL or hwloc XML, rocm-smi or amd-smi text, or braid topo --json"
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
        return read_text(decoded(data))
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
        return hwloc.read(start) if _first_tag(start) == "topology" else nccl.read(start)
    if re.match(r"\{|\[(?!\d*m)", start):  # "[4m" is an escape code that lost its first character
        return document.read(start)
    begin, end = text.find("<system "), text.rfind("</system>")
    if 0 <= begin < end:  # below the prompt of a shell, between other lines
        return nccl.read(text[begin:end] + "</system>")
    table = plain(text)
    if rocm.looks_right(table):
        return rocm.read(table)
    if smi.looks_right(table):
        return smi.read(table)
    raise BadTopology(f"no topology that braid knows: it reads {_KNOWN}")


def _first_tag(xml: str) -> str:
    """The first element's name; "" where there is none."""
    at = 0
    while begun := next((pair for pair in _BEFORE_ELEMENTS if xml.startswith(pair[0], at)), None):
        end = xml.find(begun[1], at)
        if end < 0:
            return ""
        at = end + len(begun[1])
        while xml[at : at + 1].isspace():
            at += 1
    tag = re.match(r"<(\w+)", xml[at : at + 40])
    return tag[1] if tag else ""


def with_model(machine: Machine, model: str) -> Machine:
    """The machine with the name of its GPUs, for sources that do not tell it."""
    return replace(machine, gpus=[replace(gpu, model=gpu.model or model) for gpu in machine.gpus])
