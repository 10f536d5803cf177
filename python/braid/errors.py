"""What braid raises. Each class says who must act; the message names the object, what was asked,
what was found.
"""


class Error(Exception):
    """Base of everything that braid raises."""


class InvalidArgument(Error, ValueError):
    """The caller must change the call. Nothing was sent and no buffer was written to."""


class Unsupported(Error):
    """This build or link does not do what was asked."""


class Unavailable(Error):
    """The operator must provide something: a store that answers, a device, a job token."""


class Exhausted(Error):
    """Memory, descriptors or slots ran out."""


class DriverError(Error):
    """A foreign library or the kernel failed; the message has the library, the call and its
    number.
    """


class Timeout(Error, TimeoutError):
    """A deadline passed; the message names who was waited for."""


class PeerLost(Error, ConnectionError):
    """A rank died or left. The comm cannot be used any more."""


class Cancelled(Error):
    """The caller took the work back before it was done."""


class InternalError(Error):
    """A bug in braid. Please report it."""
