"""Which GPU a rank drives, and that no other rank drives it, too."""

import hashlib

import torch

from braid import launched
from braid.bench.crew import Crew
from braid.errors import InvalidArgument

_PART_BYTES = 4  # that a float64 holds exactly


def take() -> torch.device:
    """The GPU at this rank's place on its node, current from here on. Where the launcher shows each
    rank its own alone that is the first.
    """
    device = torch.device("cuda", launched.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def check_apart(crew: Crew) -> None:
    """Ranks that each see one GPU cannot tell whether it is the same. InvalidArgument on all where
    two have one: they would take turns on it, and NCCL refuses that. Collective.
    """
    seen: dict[tuple[float, ...], int] = {}
    for rank, row in enumerate(crew.rows(_mark())):
        other = seen.setdefault(tuple(row), rank)
        if other != rank:
            raise InvalidArgument(
                f"bench: ranks {other} and {rank} have the same GPU: start one rank for each GPU,"
                " or measure between CPUs"
            )


def _mark() -> list[float]:
    """Of the current GPU, by its UUID, in numbers that ranks can exchange; of the rank, where torch
    is too old to tell it.
    """
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    name = str(getattr(facts, "uuid", f"rank {launched.rank()}"))
    text = hashlib.blake2b(name.encode(), digest_size=3 * _PART_BYTES).digest()
    parts = (text[at : at + _PART_BYTES] for at in range(0, len(text), _PART_BYTES))
    return [float(int.from_bytes(part, "big")) for part in parts]
