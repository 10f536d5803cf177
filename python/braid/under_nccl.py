"""What this process's calls of NCCL became under the drop-in (libbraid-nccl.so)."""

import ctypes
import json
from typing import Any

NAME = "libnccl.so.2"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv")
_NO_LOAD = 4  # RTLD_NOLOAD


def _drop_in() -> ctypes.CDLL | None:
    """Preloaded, or opened under NCCL's name; never opened here."""
    for name, mode in ((None, ctypes.DEFAULT_MODE), (NAME, ctypes.DEFAULT_MODE | _NO_LOAD)):
        try:
            library = ctypes.CDLL(name, mode=mode)
        except OSError:
            continue
        if hasattr(library, "braid_nccl_reasons"):
            return library
    return None


def _counts(library: ctypes.CDLL) -> tuple[dict[str, int], dict[str, int]]:
    taken, handed_on = (ctypes.c_uint64 * len(OPS))(), (ctypes.c_uint64 * len(OPS))()
    library.braid_nccl_counts(taken, handed_on, ctypes.c_size_t(len(OPS)))
    return dict(zip(OPS, taken, strict=True)), dict(zip(OPS, handed_on, strict=True))


def _reasons(library: ctypes.CDLL) -> dict[str, Any]:
    library.braid_nccl_reasons.restype = ctypes.c_size_t
    room = 64 << 10
    text = ctypes.create_string_buffer(room)
    size = library.braid_nccl_reasons(text, ctypes.c_size_t(room))
    found: dict[str, Any] = json.loads(text.raw[:size]) if 0 < size <= room else {}
    return found


def stats() -> dict[str, Any]:
    """What became of this process's calls of NCCL so far, and why.

    {"nccl": None} where braid does not stand in for NCCL. Else of `nccl`: "taken" and "handed_on",
    calls by operation; "why", reasons for which calls were handed on, with their numbers;
    "communicators": how many were "taken", how many of these over several nodes, and by reason how
    many were "left" to NCCL. Counts once per rank of this process. Any thread; microseconds.
    """
    library = _drop_in()
    if library is None:
        return {"nccl": None}
    taken, handed_on = _counts(library)
    found = _reasons(library)
    return {
        "nccl": {
            "taken": taken,
            "handed_on": handed_on,
            "why": found.get("calls", {}),
            "communicators": found.get(
                "communicators", {"taken": 0, "taken_over_nodes": 0, "left": {}}
            ),
        }
    }
