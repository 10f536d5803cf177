"""Which host this is, for ranks that ask whether they are on one."""

import os
import socket
from pathlib import Path


def boot_id() -> str:
    """Of the machine's start: containers on one machine may have names of their own."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text(encoding="ascii").strip() if boot.exists() else socket.gethostname()


def host_id() -> str:
    """Equal for processes that reach each other over loopback."""
    try:
        network = os.stat("/proc/self/ns/net").st_ino  # containers of one host have their own
    except OSError:
        network = 0
    return f"{boot_id()}:{network}"
