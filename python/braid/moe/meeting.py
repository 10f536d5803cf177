"""The comm of a buffer. How its ranks find each other when they come as another library's group:
each tells the others where it is, rank 0 also where it will listen and a secret.
"""

import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

from braid.comm import Comm, join
from braid.errors import InvalidArgument
from braid.joining import Identity
from braid.moe.library import is_torch, torch_side
from braid.split import bound_here, own_address
from braid.this_host import host_id

_LAST_PORT = 65_500
_ELSEWHERE = "192.0.2.1"  # kept for documentation, RFC 5737: no host, but a route leads there


def comm_of(group: Any, mpi: Any) -> Comm:
    """Of what Buffer was given: `group`, or mpi4py's communicator in its place."""
    if isinstance(group, Comm):
        return group
    if group is None and mpi is not None:
        return meet(mpi.Get_rank(), mpi.Get_size(), mpi.allgather)
    if is_torch(group):
        return torch_side().comm_of_group(group)  # type: ignore[no-any-return]
    raise InvalidArgument(
        "Buffer: argument group: expected a braid.Comm or a group of torch.distributed, got"
        f" {type(group).__name__}"
    )


def _address() -> str:
    try:
        return own_address(os.environ.get("MASTER_ADDR") or _ELSEWHERE)
    except OSError:
        return "127.0.0.1"


def _free_port() -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("", 0))
            if (port := int(probe.getsockname()[1])) < _LAST_PORT:
                return port


def meet(
    rank: int, size: int, gather: Callable[[dict[str, Any]], list[dict[str, Any]]], **options: Any
) -> Comm:
    """A comm of the ranks that call it; `gather` gives every rank what each has told."""
    if size == 1:
        return join(Identity(0, 1), tune="off", **options)
    told: dict[str, Any] = {"host": host_id(), "address": _address()}
    if rank == 0:
        told |= {"port": _free_port(), "job": secrets.token_hex(8), "token": secrets.token_hex(16)}
    cards = gather(told)
    hosts = [card["host"] for card in cards]
    identity = Identity(
        rank,
        size,
        local_rank=hosts[:rank].count(hosts[rank]),
        store_address="127.0.0.1" if len(set(hosts)) == 1 else cards[0]["address"],
        store_port=cards[0]["port"],
        job_id=cards[0]["job"],
    )
    options = bound_here({"tune": "off", **options}, identity.store_address)
    return join(identity, job_token=cards[0]["token"], **options)
