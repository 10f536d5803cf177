"""Two hosts on one machine: network namespaces that are joined by rails of given rates, and by
nothing else. An engine's control connection runs over the rails, too, and must outlive each.

Needs root and iproute2. Frames are 9000 bytes, as on RDMA networks: at 1500 the headers alone take
4.4 % of a rail. Rates are tbf's, egress of both ends.
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from typing import Self

from braid.errors import DriverError

_MTU = 9000
SOURCE, TARGET = 0, 1
"""The hosts."""


def why_not() -> str | None:
    """Why this machine cannot do it; None when it can."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs iproute2"
    name = f"braid-{os.getpid()}"
    try:
        _do("ip", "netns", "add", name)
    except DriverError as error:
        return f"network namespaces cannot be made: {error}"
    _do("ip", "netns", "del", name)
    return None


def _try(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


def _do(*words: str) -> None:
    done = _try(*words)
    if done.returncode != 0:
        raise DriverError(f"{' '.join(words)}: {done.stderr.strip()}")


class TwoHosts:
    """The namespaces go away with the object, and their cables with them."""

    def __init__(self, rates_mbit: Sequence[float]) -> None:
        self._rates_mbit = list(rates_mbit)
        tag = secrets.token_hex(3)
        self._names = [f"braid-{tag}-source", f"braid-{tag}-target"]

    def __enter__(self) -> Self:
        try:
            for name in self._names:
                _do("ip", "netns", "add", name)
                _do("ip", "-n", name, "link", "set", "lo", "up")
            for rail, rate in enumerate(self._rates_mbit):
                self._cable(rail, rate)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Everything of it goes."""
        for name in self._names:
            _try("ip", "netns", "del", name)

    def addresses(self, host: int) -> list[str]:
        """Of its rails, in order."""
        return [f"10.97.{rail}.{host + 1}" for rail in range(len(self._rates_mbit))]

    def prefix(self, host: int) -> list[str]:
        """What makes a command line run there."""
        return ["ip", "netns", "exec", self._names[host]]

    def cut(self, rail: int, host: int) -> None:
        """Switches that end of a rail off: the carrier goes at both."""
        _do("ip", "-n", self._names[host], "link", "set", f"rail{rail}", "down")

    def restore(self, rail: int, host: int) -> None:
        """Switches it on again."""
        _do("ip", "-n", self._names[host], "link", "set", f"rail{rail}", "up")

    def _cable(self, rail: int, rate_mbit: float) -> None:
        name, (a, b) = f"rail{rail}", self._names
        _do("ip", "link", "add", name, "netns", a, "type", "veth", "peer", "name", name, "netns", b)
        shape = ["tbf", "rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "50ms"]
        for host, address in ((a, self.addresses(SOURCE)[rail]), (b, self.addresses(TARGET)[rail])):
            _do("ip", "-n", host, "link", "set", name, "mtu", str(_MTU))
            _do("ip", "-n", host, "addr", "add", f"{address}/24", "dev", name)
            _do("ip", "-n", host, "link", "set", name, "up")
            _do("tc", "-n", host, "qdisc", "replace", "dev", name, "root", *shape)
