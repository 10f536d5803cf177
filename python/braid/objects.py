"""Python objects between the ranks of a comm, pickled.

To unpickle is to run what the sender says. Every rank of a group has proved that it knows the
group's secret (BRAID_JOB_TOKEN) before anything comes from it, and what it sends is taken as its
own code would be: these calls are as safe as the least safe rank, as torch's are. Over a network
the bytes are not encrypted.
"""

import pickle
from collections.abc import Iterable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from braid.arguments import checked_rank
from braid.errors import InvalidArgument
from braid.messages import Messages

T = TypeVar("T")
Object: TypeAlias = Any
"""Whatever pickle takes."""

_NOT_PICKLED = -1  # said instead of a length, so that nobody waits for what does not come


class Objects(Messages):
    """Calls whose arguments are Python objects. Those that are collective are so like all others.

    An object that cannot be pickled raises InvalidArgument on every rank that would get it, and
    what pickle raised on its own rank. The results are copies, but on the rank that sends.
    """

    def broadcast_object(self, obj: Object = None, root: int = 0) -> Object:
        """Root's `obj`, on every rank; that of the others is not looked at."""
        source = checked_rank("broadcast_object", "root", root, self.size)
        is_root = self.rank == source
        data, error = _pickled(obj) if is_root else (_EMPTY, None)
        length = self.broadcast(_length_of(data, error), source)
        _raise_not_pickled("broadcast_object", [int(length[0])], error, [source])
        if not is_root:
            data = np.empty(int(length[0]), np.uint8)
        self.broadcast(data, source)
        return obj if is_root else _unpickled(data)

    def all_gather_object(self, obj: T) -> list[T]:
        """Every rank's `obj`, in rank order."""
        data, error = _pickled(obj)
        lengths = self.all_gather(_length_of(data, error)).tolist()
        _raise_not_pickled("all_gather_object", lengths, error, range(self.size))
        whole = self.all_gather(data, counts=lengths)
        ends = np.cumsum(lengths)
        parts = [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        return [obj if r == self.rank else _unpickled(part) for r, part in enumerate(parts)]

    def send_object(self, obj: Object, peer: int) -> None:
        """Sends `obj` to rank `peer`, which calls recv_object(). Two messages."""
        data, error = _pickled(obj)
        self.send(_length_of(data, error), peer)
        if error is not None:
            raise error
        self.send(data, peer)

    def recv_object(self, peer: int) -> Object:
        """What rank `peer` sends by send_object()."""
        length = int(self.recv(np.empty(1, np.int64), peer)[0])
        _raise_not_pickled("recv_object", [length], None, [peer])
        return _unpickled(self.recv(np.empty(length, np.uint8), peer))


_EMPTY: NDArray[np.uint8] = np.empty(0, np.uint8)


def _pickled(obj: Object) -> tuple[NDArray[np.uint8], Exception | None]:
    try:
        return np.frombuffer(pickle.dumps(obj), np.uint8).copy(), None
    except Exception as error:  # pickle.PicklingError, or whatever a __reduce__ raises
        return _EMPTY, error


def _unpickled(data: NDArray[np.uint8]) -> Object:
    return pickle.loads(data.tobytes())  # noqa: S301 - of a rank that has proved itself: see above


def _length_of(data: NDArray[np.uint8], error: Exception | None) -> NDArray[np.int64]:
    return np.array([data.size if error is None else _NOT_PICKLED], np.int64)


def _raise_not_pickled(
    function: str, lengths: list[int], error: Exception | None, ranks: Iterable[int]
) -> None:
    if error is not None:
        raise error
    for rank, length in zip(ranks, lengths, strict=True):
        if length == _NOT_PICKLED:
            raise InvalidArgument(f"{function}: the object of rank {rank} cannot be pickled")
