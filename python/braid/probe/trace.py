"""Traces: the collective calls of a real job, one JSON object a line.

    {"op": "all_reduce", "bytes": 67108864, "dtype": "bfloat16"}
    {"op": "all_gather", "bytes": 1048576, "dtype": "float32", "count": 80}

`bytes` are as nccl-tests counts; `count` repeats the call. Further fields are left alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from braid.cases.operations import OPS
from braid.errors import InvalidArgument
from braid.probe.player import Call

MOST_CALLS = 1_000_000
_LARGEST = 1 << 40
_MOST_BYTES = 256 << 20
"""Of a file: what has no end (/dev/zero) is not read to it."""


def read(path: Path, dtypes: Sequence[str], where: str = "") -> list[Call]:
    """The calls in order. InvalidArgument names the line that does not fit. `where` calls have
    these dtypes, in words.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InvalidArgument(f"{path}: more than {_MOST_BYTES >> 20} MiB, which is no trace")
        lines = content.decode().splitlines()
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: no text: {error.reason}") from error
    calls: list[Call] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                calls += _calls(line, dtypes, where)
            except ValueError as error:
                raise InvalidArgument(f"{path}, line {number}: {error!s:.200}") from error
        if len(calls) > MOST_CALLS:
            raise InvalidArgument(f"{path}: more than {MOST_CALLS:,} calls")
    if not calls:
        raise InvalidArgument(f"{path}: the trace has no calls")
    return calls


def _calls(line: str, dtypes: Sequence[str], where: str) -> list[Call]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError('a call is an object: {"op": "all_reduce", "bytes": 4096}')
    op, dtype = row.get("op"), row.get("dtype", "float32")
    if op not in OPS:
        raise ValueError(f"op {op!r:.40} is none of {', '.join(OPS)}")
    if dtype not in dtypes:
        there = f"those {where}: " if where else ""
        raise ValueError(f"dtype {dtype!r:.40} is none of {there}{', '.join(dtypes)}")
    nbytes = _whole(row, "bytes", None, _LARGEST)
    return [Call(op, nbytes, dtype)] * _whole(row, "count", 1, MOST_CALLS)


def _whole(row: dict[str, Any], name: str, default: int | None, most: int) -> int:
    value = row.get(name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} {value!r:.40} is no whole number from 1 to {most:,}")
    return value
