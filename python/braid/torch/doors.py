"""Where a rank of a torch group takes connections, and who may come in.

Between ranks of one host it is a socket that has a name and no port, of which the system says whose
process is at the other end: those of other users are turned away at once, by both sides. Between
hosts it is a port, to which anybody may come who reaches it; then proofs alone decide (wire.py).
"""

import os
import secrets
import socket
import struct

from braid.private_socket import private
from braid.torch.wire import Unproved

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
_MOST_WAITING = 4096  # the system may have a lower limit


def listen(address: str | None) -> tuple[socket.socket, str]:
    """A socket that listens, and how others find it. None: for ranks of this host."""
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        door = socket.create_server((address, 0), family=family)
        return private(door), f"{address} {door.getsockname()[1]}"
    name = f"braid-{secrets.token_hex(16)}"
    door = private(socket.socket(socket.AF_UNIX))
    door.bind(f"\0{name}")  # in no folder: it goes with the process
    door.listen(_MOST_WAITING)
    return door, f"here {name}"


def connect(where: str, timeout_s: float) -> socket.socket:
    """A connection to what listen() said. Unproved when it is another user's."""
    address, last = where.rsplit(" ", 1)
    if address != "here":
        return private(socket.create_connection((address, int(last)), timeout=timeout_s))
    sock = private(socket.socket(socket.AF_UNIX))
    try:
        sock.settimeout(timeout_s)
        sock.connect(f"\0{last}")
        check_user(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def accept(door: socket.socket) -> socket.socket:
    """Who comes next, whoever it is."""
    return private(door.accept()[0])


def check_user(sock: socket.socket) -> None:
    """Unproved when the system says that a process of another user is at the other end."""
    if sock.family != socket.AF_UNIX:
        return
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(told)
    if user != os.geteuid():
        raise Unproved(f"process {process} of user {user} is there, who is not user {os.geteuid()}")
