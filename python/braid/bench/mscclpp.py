"""MSCCL++'s library in NCCL's place: a baseline that is built elsewhere and named by --mscclpp.

It has NCCL's names for functions of its own. It is opened by its path into a scope that looks at
itself first and that nobody else looks into: torch keeps its NCCL, and both run in turn. What it
does not do itself (sums of 1 MiB and more, reduce-scatter) it hands to the NCCL that torch brought,
on a communicator of its own, as it would for a program that uses it.

No multicast object is made: MSCCLPP_FORCE_DISABLE_NVLS is set before it is opened, whatever it was.
Where NCCL would answer with an error it may throw, which ends the process.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from braid.bench.contestant import MSCCLPP, Contestant, Shelf
from braid.bench.crew import Crew
from braid.bench.pattern import Data
from braid.cases.gpu import GpuCase

_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_DTYPES = {"uint8": 1, "int32": 2, "float16": 6, "float32": 7, "bfloat16": 9}  # as NCCL counts them
_SUM = 0
_ROOM_BYTES = 64 << 20
_MAPS = Path("/proc/self/maps")
_DEFAULTS = {
    "MSCCLPP_NCCL_SYMMETRIC_MEMORY": "1",  # else every eager call makes its connections anew
    "MSCCLPP_SOCKET_IFNAME": "lo",  # all ranks are here
}
_NCCL_PATH = "MSCCLPP_NCCL_LIB_PATH"


class _Id(ctypes.Structure):
    """An ncclUniqueId."""

    _fields_ = (("words", ctypes.c_int64 * 16),)


class Library:
    """The functions of one library. RuntimeError says which failed, in the library's words."""

    def __init__(self, path: str) -> None:
        scope = os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND
        self._library = ctypes.CDLL(path, mode=scope)
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._comm = ctypes.c_void_p()

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - of any C type
        """One call of NCCL's interface."""
        code = getattr(self._library, name)(*arguments)
        if code:
            words = self._library.ncclGetErrorString(code) or b""
            raise RuntimeError(f"{name}: {words.decode(errors='replace')} ({code})")

    def join(self, crew: Crew) -> None:
        """Makes the communicator of all ranks. Collective."""
        made = _Id()
        if crew.rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(made))
        agreed = _Id((ctypes.c_int64 * 16)(*crew.agree(*made.words)))
        self.call("ncclCommInitRank", ctypes.byref(self._comm), crew.size, agreed, crew.rank)

    def enqueue(self, op: str, dtype: str, count: int, send: int, out: int, stream: int) -> None:
        """One collective on a stream. `count` is of elements as NCCL counts them for `op`."""
        kind, add = ctypes.c_int(_DTYPES[dtype]), ctypes.c_int(_SUM)
        where = ctypes.c_void_p(send), ctypes.c_void_p(out), ctypes.c_size_t(count)
        tail = self._comm, ctypes.c_void_p(stream)
        if op == "all_gather":
            self.call("ncclAllGather", *where, kind, *tail)
            return
        name = "ncclAllReduce" if op == "all_reduce" else "ncclReduceScatter"
        self.call(name, *where, kind, add, *tail)

    def leave(self) -> None:
        """Ends the communicator. Collective; no call is running."""
        if self._comm:
            self.call("ncclCommDestroy", self._comm)
            self._comm = ctypes.c_void_p()

    @property
    def version(self) -> str:
        """The number that ncclGetVersion gives: 900 is 0.9.0."""
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return str(number.value)


def loaded_nccl(maps: Path = _MAPS) -> str:
    """The NCCL that torch brought into this process; "" when there is none."""
    paths = (line.split()[-1] for line in maps.read_text(encoding="utf-8").splitlines() if line)
    return next((path for path in paths if Path(path).name.startswith("libnccl.so")), "")


def set_environment() -> None:
    """What the library reads when it is opened. The environment's own words win, but for NVLS."""
    os.environ["MSCCLPP_FORCE_DISABLE_NVLS"] = "1"
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault(_NCCL_PATH, loaded_nccl())


def open_library(path: str) -> Library:
    """The library, in an environment that suits it. OSError when it cannot be opened."""
    set_environment()
    return Library(path)


def words_for(path: str, library: Library) -> str:
    """What was measured, for the record."""
    found = {name: os.environ.get(name, "") for name in sorted((*_DEFAULTS, _NCCL_PATH))}
    said = ", ".join(f"{name}={value}" for name, value in found.items())
    return f"{path}, version {library.version}, MSCCLPP_FORCE_DISABLE_NVLS=1, {said}"


def lasting_shelf(device: torch.device) -> Shelf:
    """One buffer for the whole run: the library remembers how peers reach an address, and would
    take memory that comes to lie there later for the same.
    """
    kept: list[torch.Tensor] = []

    def make(nbytes: int) -> tuple[torch.Tensor, Callable[[], None]]:
        if not kept:
            kept.append(torch.empty(_ROOM_BYTES, dtype=torch.uint8, device=device))
        if nbytes > _ROOM_BYTES:
            raise ValueError(f"asked for {nbytes} bytes of {_ROOM_BYTES}")
        return kept[0], lambda: None

    return Shelf(make)


class Mscclpp(Contestant):
    """One communicator of it, on ordinary memory."""

    name = group = MSCCLPP

    def __init__(self, library: Library, send: Shelf, out: Shelf) -> None:
        self._library, self._send_shelf, self._out_shelf = library, send, out
        self._call: Any = None

    def is_for(self, op: str) -> bool:
        """It is compared where there is a figure."""
        return op in _OPS

    def why_not(self, case: GpuCase) -> str:
        """Its types, and the sizes of its buffers."""
        if case.dtype not in _DTYPES:
            return f"it has {', '.join(_DTYPES)}"
        if case.total_bytes > _ROOM_BYTES:
            return f"it is measured up to {_ROOM_BYTES >> 20} MiB of all ranks together"
        return ""

    def shelves(self, case: GpuCase) -> dict[Shelf, int]:  # noqa: ARG002 - it keeps all it has
        """The memory it uses, whatever the case."""
        return {self._send_shelf: _ROOM_BYTES, self._out_shelf: _ROOM_BYTES}

    def prepare(self, case: GpuCase, data: Data, rank: int) -> None:
        """Takes buffers, fills what is sent, makes the call."""
        self.send = self._send_shelf.take(case.send_count * case.itemsize, data.dtype)
        self.out = self._out_shelf.take(case.out_count * case.itemsize, data.dtype)
        data.fill(self.send, rank)
        count = case.out_count if case.op == "reduce_scatter" else case.send_count
        send, out, library = self.send.data_ptr(), self.out.data_ptr(), self._library
        op, dtype, stream = case.op, case.dtype, torch.cuda.current_stream
        self._call = lambda: library.enqueue(op, dtype, count, send, out, stream().cuda_stream)

    def run(self) -> None:
        """Enqueues one call, on the stream of the moment: that of a capture too."""
        self._call()

    def let_go(self) -> None:
        """Forgets its buffers."""
        super().let_go()
        self._call = None
