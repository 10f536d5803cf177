"""What readers raise."""

from braid.errors import InvalidArgument
from braid.printable import printable


class BadTopology(InvalidArgument):
    """The text is no topology that braid can read; the message says where and why, in one line.

    Messages quote what was found, so characters that would move a terminal's cursor are taken out.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message).replace("\n", "?"))
