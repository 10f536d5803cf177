"""Who is in which part of a group that is split, and where each part meets."""

import operator
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from braid.errors import InvalidArgument

_PORTS_TRIED = 8  # by a store, from its port on


@dataclass(frozen=True)
class Choice:
    """What a rank says of itself before a split."""

    rank: int
    color: int | None
    key: int
    address: str
    """Where others reach this process."""
    port: int
    """Free there now."""
    nonce: str


def choose_part(rank: int, color: int | None, key: int, address: str) -> Choice:
    """This rank's."""
    try:
        plain = None if color is None else operator.index(color)
        order = operator.index(key)
    except TypeError:
        raise InvalidArgument(
            "split: arguments color and key: asked for whole numbers, color may be None, found"
            f" {color!r} and {key!r}"
        ) from None
    return Choice(rank, plain, order, address, _free_port(), secrets.token_hex(4))


def part_of(choices: list[Choice], rank: int) -> list[Choice]:
    """The choices of `rank`'s part, in their order there. The part meets at the first one's."""
    color = choices[rank].color
    return sorted((c for c in choices if c.color == color), key=lambda c: (c.key, c.rank))


def own_address(store_address: str) -> str:
    """By which other ranks reach this process: the one from which this host reaches the store; that
    of the store where it is on this host, whose own name may mean loopback here.
    """
    family, kind, protocol, _, to = socket.getaddrinfo(
        store_address, 9, type=socket.SOCK_DGRAM, proto=socket.IPPROTO_UDP
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(to)  # sends nothing
        found = str(probe.getsockname()[0])
    return store_address if ip_address(found).is_loopback else found


def bound_here(options: Mapping[str, Any], store_address: str) -> dict[str, Any]:
    """Options of a group that meets at an address which braid has found out, maybe on another host
    than the job's rank 0, whose BRAID_BIND is. Its store listens where the others look for it; at
    BRAID_BIND where they look for a name, which may mean loopback here, and this host has it.
    """
    given = [value for name, value in options.items() if name.upper() == "BIND"]
    bind = str(given[-1]) if given and given[-1] is not None else os.environ.get("BRAID_BIND", "")
    if not bind or (_is_name(store_address) and _is_of_this_host(bind)):
        return dict(options)
    return {**options, "bind": store_address}


def _is_name(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return True
    return False


def _is_of_this_host(address: str) -> bool:
    """Whether something can listen there; so it can at the address of all."""
    with suppress(OSError):
        for family, kind, _, _, at in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(at)
                return True
    return False


def _free_port() -> int:
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        if port <= 65535 - _PORTS_TRIED:
            return port


def fields_of(part: list[Choice], rank: int, number: int) -> dict[str, Any]:
    """The fields of braid.Identity of one rank of a part of a comm's `number`-th split."""
    place = next(i for i, choice in enumerate(part) if choice.rank == rank)
    first = part[0]
    return {
        "rank": place,
        "size": len(part),
        "store_address": first.address,
        "store_port": first.port,
        "job_id": f"split {number} {first.color} {first.nonce}",
    }
