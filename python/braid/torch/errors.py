"""braid's errors as torch.distributed raises them: each is braid's class of that name and a
torch.distributed.DistBackendError, a RuntimeError, so a program that expects either catches them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import DistBackendError

from braid import errors


class Error(errors.Error, DistBackendError):
    """What has no class of its own here."""


class InvalidArgument(errors.InvalidArgument, DistBackendError):  # noqa: N818
    """The caller must change the call."""


class Unsupported(errors.Unsupported, DistBackendError):  # noqa: N818
    """This build, link or torch does not do what was asked."""


class Unavailable(errors.Unavailable, DistBackendError):  # noqa: N818
    """The operator must provide something."""


class Exhausted(errors.Exhausted, DistBackendError):  # noqa: N818
    """Memory, descriptors or slots ran out."""


class DriverError(errors.DriverError, DistBackendError):
    """A foreign library or the kernel failed."""


class Timeout(errors.Timeout, DistBackendError):  # noqa: N818
    """A deadline passed. The text has "timed out", which programs look for."""

    def __init__(self, text: Any = "") -> None:
        said = str(text)
        super().__init__(said if "timed out" in said.lower() else f"timed out: {said}")


class PeerLost(errors.PeerLost, DistBackendError):  # noqa: N818
    """A rank died or left."""


class Cancelled(errors.Cancelled, DistBackendError):  # noqa: N818
    """The caller took the work back before it was done."""


class InternalError(errors.InternalError, DistBackendError):
    """A bug in braid."""


_OURS: dict[type[errors.Error], Any] = {
    ours.__bases__[0]: ours
    for ours in (
        *(InvalidArgument, Unsupported, Unavailable, Exhausted),
        *(DriverError, Timeout, PeerLost, Cancelled, InternalError),
    )
}


def as_torch(error: BaseException) -> BaseException:
    """An error of braid's core as one of these; others as they are."""
    if not isinstance(error, errors.Error) or isinstance(error, DistBackendError):
        return error
    ours: errors.Error = _OURS.get(type(error), Error)(str(error))
    return ours.with_traceback(error.__traceback__)


@contextmanager
def torch_errors() -> Iterator[None]:
    """What the body raises is raised as_torch()."""
    try:
        yield
    except errors.Error as error:
        raise as_torch(error) from None
