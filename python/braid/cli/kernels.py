"""Whether a library of this build has kernels for GPUs, and for which.

Kernels are fatbins in it (cmake/cuda.cmake), which say themselves for what they were compiled. A
build without nvcc has none, and says nothing of that by itself.
"""

import struct
from pathlib import Path

_MAGIC = b"\x50\xed\x55\xba"
_HEAD = struct.Struct("<IHHQ")  # magic, version, bytes of this head, bytes of all parts behind it
_PART = struct.Struct("<HHIQ")  # kind, version, bytes of its head, bytes behind that
_ARCHITECTURE = 28  # where a part's head has it
NONE = "MISSING: built without nvcc (12.8 or newer is needed), so that GPUs are left to NCCL"


def built_for(library: Path) -> list[int]:
    """The architectures, such as 90; none where there are no kernels. OSError for no such file."""
    image = library.read_bytes()
    found: set[int] = set()
    at = image.find(_MAGIC)
    while at >= 0:
        found |= _of_fatbin(image, at)
        at = image.find(_MAGIC, at + len(_MAGIC))
    return sorted(found)


def _of_fatbin(image: bytes, at: int) -> set[int]:
    if at + _HEAD.size > len(image):
        return set()
    _, version, head, size = _HEAD.unpack_from(image, at)
    end = at + head + size
    if version != 1 or head != _HEAD.size or end > len(image):
        return set()  # the four bytes mean something else here
    found, part = set(), at + head
    while part + _ARCHITECTURE + 4 <= end:
        _, _, part_head, part_size = _PART.unpack_from(image, part)
        if part_head < _ARCHITECTURE + 4:
            return set()
        found.add(struct.unpack_from("<I", image, part + _ARCHITECTURE)[0])
        part += part_head + part_size
    return found


def words(library: Path) -> str:
    """For which GPUs, or that there are none."""
    try:
        found = built_for(library)
    except OSError:
        return "MISSING: there is no such library"
    return f"for {', '.join(f'sm_{each}' for each in found)}" if found else NONE
