"""What readers raise."""

from braid.errors import InvalidArgument


class BadTopology(InvalidArgument):
    """The text is no topology that braid can read; the message says where and why, in one line."""
