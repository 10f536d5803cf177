"""Letters: a JSON head and bytes of any length, cut into the engine's messages, which come in order
for each peer and each exactly once. Prefillers and decoders write them, and trainers and workers.

    frame    "bkv", version (1 byte), part and parts (u16), then that part of
    message  length of the head (u32), the head as JSON, the body

The first eight bytes and the hello's `address` stay as they are in all versions, so that a side of
another version can be told so.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any

from braid.errors import InvalidArgument

VERSION = 1
_FRAME = struct.Struct("<3sBHH")
_MAGIC = b"bkv"
_MOST_FRAME = 60_000
_MOST_PARTS = 4096
_MOST_UNFINISHED = 1024


class OtherVersion(InvalidArgument):
    """The peer speaks another version of the protocol."""


def frames(head: dict[str, Any], body: bytes = b"") -> list[bytes]:
    """The engine's messages that make up one of ours."""
    text = json.dumps(head, separators=(",", ":")).encode()
    data = struct.pack("<I", len(text)) + text + body
    cuts = range(0, len(data), _MOST_FRAME)
    if len(cuts) > _MOST_PARTS:
        raise InvalidArgument(f"letter: a message of {len(data)} bytes is too long")
    return [
        _FRAME.pack(_MAGIC, VERSION, part, len(cuts)) + data[cut : cut + _MOST_FRAME]
        for part, cut in enumerate(cuts)
    ]


@dataclass(slots=True)
class _Unfinished:
    parts: int
    data: list[bytes]


class Joiner:
    """Puts frames together again. InvalidArgument for what no frames() has made.

    A letter whose sender could not send all of it is followed by another one: its begin is
    forgotten.
    """

    def __init__(self) -> None:
        self._unfinished: dict[bytes, _Unfinished] = {}

    def add(self, sender: bytes, frame: bytes) -> tuple[dict[str, Any], bytes] | None:
        """The message that `frame` ends, if it ends one."""
        if len(frame) < _FRAME.size or frame[:3] != _MAGIC:
            raise InvalidArgument(f"letter: a message of {len(frame)} bytes that is none of ours")
        _, version, part, parts = _FRAME.unpack_from(frame)
        unfinished = self._unfinished.pop(sender, _Unfinished(parts, []))
        if part == 0:
            unfinished = _Unfinished(parts, [])
        if part != len(unfinished.data) or parts != unfinished.parts or part >= parts:
            raise InvalidArgument(
                f"letter: part {part} of {parts} does not follow what came before"
            )
        unfinished.data.append(frame[_FRAME.size :])
        if part + 1 < parts:
            if len(self._unfinished) >= _MOST_UNFINISHED:  # the oldest: of a peer that went
                del self._unfinished[next(iter(self._unfinished))]
            self._unfinished[sender] = unfinished
            return None
        head, body = _parsed(b"".join(unfinished.data))
        if version != VERSION:
            if head.get("kind") == "hello":
                return {**head, "kind": "hello", "version": version}, body
            raise OtherVersion(
                f"letter: asked for version {VERSION} of the protocol, found {version}"
            )
        return head, body


def _parsed(data: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        (length,) = struct.unpack_from("<I", data)
        head = json.loads(data[4 : 4 + length])
    except (struct.error, ValueError, RecursionError) as error:
        raise InvalidArgument(f"letter: a message whose head is no JSON: {error}") from error
    if not isinstance(head, dict) or not isinstance(head.get("kind"), str):
        raise InvalidArgument(f"letter: a message without a kind: {head!r:.100}")
    return head, data[4 + length :]


def whole(head: dict[str, Any], name: str, most: int = 2**53) -> int:
    """A number of a head, from 0 to `most`."""
    value = head.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidArgument(f"letter: {name}: asked for 0 to {most}, found {value!r:.60}")
    return value


def text(head: dict[str, Any], name: str) -> str:
    value = head.get(name)
    if not isinstance(value, str):
        raise InvalidArgument(f"letter: {name}: asked for words, found {value!r:.60}")
    return value


def pack(parts: list[bytes]) -> bytes:
    """Several byte strings as one."""
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def unpack(data: bytes) -> list[bytes]:
    out, at = [], 0
    while at < len(data):
        if at + 4 > len(data):
            raise InvalidArgument("letter: a body that ends within a length")
        (length,) = struct.unpack_from("<I", data, at)
        if at + 4 + length > len(data):
            raise InvalidArgument(f"letter: a body that ends within a part of {length} bytes")
        out.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return out
