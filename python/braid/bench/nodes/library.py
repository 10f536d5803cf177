"""NCCL's functions by their addresses: those of the drop-in that the process was started with, and
those of the real library behind it. A communicator that was made through the drop-in is the real
one's, too, so both can be called on it in turn.
"""

import ctypes
from pathlib import Path
from typing import Any

from braid.errors import InvalidArgument

NAME = "libnccl.so.2"
DTYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9,
}  # fmt: skip
_SUM = 0
_NUM_OPS = 7
"""all_reduce, all_gather, reduce_scatter, ..: the order of braid_nccl_counts()."""
_ID_BYTES = 128
HOW = 'start it with BRAID_NCCL_NODES=on and LD_PRELOAD from "braid nccl-env" on all ranks'


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("bytes", ctypes.c_char * _ID_BYTES),)


def drop_in() -> Any:  # noqa: ANN401 - a library
    """InvalidArgument where the process was not started under it."""
    try:
        library = ctypes.CDLL(NAME)
        library.braid_nccl_counts  # noqa: B018 - whether there is one
    except (OSError, AttributeError):
        raise InvalidArgument(f"bench nodes: braid is not in NCCL's place; {HOW}") from None
    return library


def real(own: Any) -> Any:  # noqa: ANN401
    """The library behind the drop-in, which has loaded it and has its SONAME."""
    taken = ctypes.cast(own.ncclAllGather, ctypes.c_void_p).value
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split()[-1]
        if not (path.startswith("/") and "nccl" in Path(path).name):
            continue
        try:
            library = ctypes.CDLL(path)
            found = ctypes.cast(library.ncclAllGather, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
        if found != taken:
            return library
    raise InvalidArgument("bench nodes: the real NCCL is not loaded behind the drop-in")


def fresh_id(library: Any) -> bytes:  # noqa: ANN401
    """Of a communicator that is to be made."""
    made = UniqueId()
    _check("ncclGetUniqueId", library.ncclGetUniqueId(ctypes.byref(made)))
    return ctypes.string_at(ctypes.byref(made), _ID_BYTES)


def make_comm(library: Any, unique: bytes, size: int, rank: int) -> ctypes.c_void_p:  # noqa: ANN401
    """Collective."""
    given, comm = UniqueId(), ctypes.c_void_p()
    ctypes.memmove(ctypes.byref(given), unique, _ID_BYTES)
    library.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)
    answer = library.ncclCommInitRank(ctypes.byref(comm), size, given, rank)
    _check("ncclCommInitRank", answer)
    return comm


def counts(library: Any) -> tuple[list[int], list[int]]:  # noqa: ANN401
    """Calls taken over and handed on so far, by operation."""
    taken, handed_on = (ctypes.c_uint64 * _NUM_OPS)(), (ctypes.c_uint64 * _NUM_OPS)()
    library.braid_nccl_counts(taken, handed_on, ctypes.c_size_t(_NUM_OPS))
    return list(taken), list(handed_on)


class Call:
    """One collective on one communicator's buffers, by one of the libraries."""

    def __init__(
        self,
        library: Any,  # noqa: ANN401
        comm: ctypes.c_void_p,
        op: str,
        dtype: str,
        count: int,
        send: int,
        recv: int,
        stream: int,
    ) -> None:
        kind, elements = ctypes.c_int(DTYPES[dtype]), ctypes.c_size_t(count)
        buffers = ctypes.c_void_p(send), ctypes.c_void_p(recv), elements, kind
        where = comm, ctypes.c_void_p(stream)
        added = (ctypes.c_int(_SUM),)
        self._name, self._function, self._arguments = {
            "all_gather": ("ncclAllGather", library.ncclAllGather, (*buffers, *where)),
            "all_reduce": ("ncclAllReduce", library.ncclAllReduce, (*buffers, *added, *where)),
            "reduce_scatter": (
                "ncclReduceScatter", library.ncclReduceScatter, (*buffers, *added, *where)
            ),
        }[op]  # fmt: skip

    def __call__(self) -> None:
        """Enqueues it."""
        _check(self._name, self._function(*self._arguments))


def _check(name: str, answer: int) -> None:
    if answer != 0:
        raise RuntimeError(f"{name} answered {answer}")
