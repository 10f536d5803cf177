"""The kernel's text files, below any root: /sys and /proc of this machine, or a copy of them."""

import os
from dataclasses import dataclass
from pathlib import Path

from braid.topo.numbers import whole

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Tree:
    """Read-only. Paths are written as on a live machine: "/sys/class/net"."""

    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """Where `path` is."""
        return self.root / path.lstrip("/")

    def read_bytes(self, path: str) -> bytes:
        """Empty when there is no such file, or it cannot be read now (a link that is down)."""
        try:
            with self.at(path).open("rb") as file:
                return file.read(_MAX_BYTES)
        except OSError:
            return b""

    def read(self, path: str) -> str:
        """The text without white space around it; "" when there is none."""
        return self.read_bytes(path).decode("utf-8", errors="replace").strip()

    def integer(self, path: str) -> int | None:
        """A decimal number; None when there is none."""
        return whole(self.read(path))

    def names(self, path: str) -> list[str]:
        """Entries of a folder, sorted; none when there is no such folder."""
        try:
            return sorted(os.listdir(self.at(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether the path leads somewhere."""
        return self.at(path).exists()

    def resolve(self, path: str) -> str:
        """The path that links lead to, as on a live machine; "" when they lead nowhere."""
        try:
            real = self.at(path).resolve(strict=True)
            return "/" + str(real.relative_to(self.root.resolve()))
        except (OSError, RuntimeError, ValueError):
            return ""
