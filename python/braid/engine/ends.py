"""The two ends of a transfer: what a caller names, checked, as the core has it."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from braid import _braid
from braid.engine import values
from braid.engine.region import Descriptor, Peer, Region
from braid.engine.words import ScatterPart
from braid.errors import InvalidArgument

T = TypeVar("T")

Offsets: TypeAlias = Sequence[int] | npt.NDArray[Any]
"""One for each plane."""

_MOST_KEPT = 4096


class Ends:
    """The part of Engine that knows its own regions, and which peers and regions of theirs were
    named before. `what` says in an error which argument it is.
    """

    def __init__(self, core: _braid.engine.Engine) -> None:
        self._core = core
        self._process = os.getpid()
        self._regions: dict[int, _braid.engine.Region] = {}
        self._remotes: dict[bytes, _braid.engine.Remote] = {}
        self._addresses: dict[bytes, _braid.engine.Peer] = {}

    def _live(self) -> _braid.engine.Engine:
        if self._process != os.getpid():
            raise InvalidArgument(
                f"engine: made in process {self._process}, found in its fork {os.getpid()}: make "
                "one there, or start processes by spawn"
            )
        return self._core

    def _mine(self, region: Region, what: str) -> _braid.engine.Region:
        if not isinstance(region, Region):
            found = type(region).__name__
            raise InvalidArgument(f"{what}: asked for a Region of this engine, found {found}")
        core = region._core
        if self._regions.get(core.id) is not core:
            raise InvalidArgument(
                f"{what}: region {core.id} of {core.nbytes} bytes is not registered with this "
                "engine (any more)"
            )
        return core

    def _planes(
        self,
        what: str,
        ours: tuple[str, Region | Sequence[Region], int | Offsets],
        theirs: tuple[str, Descriptor | Sequence[Descriptor], int | Offsets],
    ) -> tuple[list[_braid.engine.Region], list[_braid.engine.Remote], Any, Any]:
        """Each side is a name, what it has, and where in it. Of each one, or one for each plane."""
        (our_name, regions, our_offset), (their_name, remotes, their_offset) = ours, theirs
        all_ours = self._all_mine(regions, f"{what}: {our_name}")
        all_theirs = self._all_remote(remotes, f"{what}: {their_name}")
        our_offsets = _offsets(our_offset, f"{what}: {our_name}_offset")
        their_offsets = _offsets(their_offset, f"{what}: {their_name}_offset")
        found = {
            our_name: len(all_ours),
            their_name: len(all_theirs),
            f"{our_name}_offset": our_offsets.size,
            f"{their_name}_offset": their_offsets.size,
        }
        most = max(found.values())
        if any(count not in (1, most) for count in found.values()):
            sizes = ", ".join(f"{count} in {name}" for name, count in found.items())
            raise InvalidArgument(f"{what}: asked for as many planes in each list, found {sizes}")
        return all_ours, all_theirs, our_offsets, their_offsets

    def _all_mine(
        self, regions: Region | Sequence[Region], what: str
    ) -> list[_braid.engine.Region]:
        if isinstance(regions, Region) or not isinstance(regions, Iterable):
            return [self._mine(regions, what)]
        each = list(regions)
        known = self._regions
        cores = [one._core for one in each if type(one) is Region]
        if len(cores) == len(each) and all(known.get(core.id) is core for core in cores):
            return cores  # many, and quickly
        return [self._mine(one, f"{what}: plane {number}") for number, one in enumerate(each)]

    def _all_remote(
        self, descriptors: Descriptor | Sequence[Descriptor], what: str
    ) -> list[_braid.engine.Remote]:
        if isinstance(descriptors, Descriptor | bytes) or not isinstance(descriptors, Iterable):
            return [self._remote(descriptors, what)]
        each = list(descriptors)
        known = self._remotes
        found = [known.get(one.data) for one in each if type(one) is Descriptor]
        remotes = [remote for remote in found if remote is not None]
        if len(remotes) == len(each):
            return remotes
        return [self._remote(one, f"{what}: plane {number}") for number, one in enumerate(each)]

    def _remote(self, descriptor: Descriptor | bytes, what: str) -> _braid.engine.Remote:
        data = _data(descriptor, Descriptor, what)
        found = self._remotes.get(data)
        if found is None:
            found = self._live().import_region(data)
            _remember(self._remotes, data, found)
        return found

    def _peer(self, peer: Peer | bytes) -> _braid.engine.Peer:
        data = _data(peer, Peer, "peer")
        found = self._addresses.get(data)
        if found is None:
            found = self._live().import_peer(data)
            _remember(self._addresses, data, found)
        return found

    def _part(self, part: ScatterPart, what: str) -> tuple[_braid.engine.Remote, int, int, int]:
        if not isinstance(part, ScatterPart):
            raise InvalidArgument(f"{what}: asked for a ScatterPart, found {type(part).__name__}")
        return (
            self._remote(part.dst, f"{what}: dst"),
            values.whole(part.dst_offset, f"{what}: dst_offset"),
            values.whole(part.src_offset, f"{what}: src_offset"),
            values.whole(part.nbytes, f"{what}: nbytes"),
        )


def _data(thing: object, kind: type[Descriptor] | type[Peer], what: str) -> bytes:
    data = thing.data if isinstance(thing, Descriptor | Peer) and isinstance(thing, kind) else thing
    if not isinstance(data, bytes):
        raise InvalidArgument(
            f"{what}: asked for a {kind.__name__} or its bytes, found {type(thing).__name__}"
        )
    return data


def _remember(kept: dict[bytes, T], data: bytes, found: T) -> None:
    if len(kept) >= _MOST_KEPT:  # checked again when they come again
        kept.clear()
    kept[data] = found


def _offsets(value: Any, what: str) -> npt.NDArray[np.uint64]:  # noqa: ANN401
    if hasattr(value, "__len__") and getattr(value, "ndim", 1) == 1:
        return values.ids(value, what, "offsets")
    return np.array([values.whole(value, what)], np.uint64)
