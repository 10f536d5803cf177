"""Two hosts on one machine: network namespaces joined by three rails whose rates are set by tc, and
by a fourth, unshaped cable for the control plane, as a front-end network is beside the rails.

    with Rails([800, 400, 200]) as rails:
        rails.run("rank.py", ...)     # one process in each namespace, a rank each
        rails.set_rate(2, 100)        # while they run
        rails.cut(1); rails.mend(1)

Needs root and iproute2. Frames are 9000 bytes, as on RDMA networks: at 1500 the headers alone take
4.4 % of a rail. Rates are tbf's, egress of both ends.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

MTU = 9000


def why_not() -> str | None:
    """Why this machine cannot do it; None when it can."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs iproute2"
    name = f"bt{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


class Rails:
    """The two hosts. Namespaces go away with the object, and their cables with them."""

    def __init__(self, rates_mbit: Sequence[float]) -> None:
        self.rates_mbit = list(rates_mbit)
        tag = secrets.token_hex(2)
        self._hosts = [f"braid-{tag}-{end}" for end in "ab"]
        self._token = secrets.token_hex(16)

    def __enter__(self) -> Self:
        try:
            for host in self._hosts:
                _do("ip", "netns", "add", host)
                _do("ip", "-n", host, "link", "set", "lo", "up")
            self._cable("front", "10.98.0")
            for rail, rate in enumerate(self.rates_mbit):
                self._cable(f"rail{rail}", f"10.99.{rail}")
                self.set_rate(rail, rate)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for host in self._hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)

    def _cable(self, name: str, network: str) -> None:
        a, b = self._hosts
        _do("ip", "link", "add", name, "netns", a, "type", "veth", "peer", "name", name, "netns", b)
        for end, host in enumerate(self._hosts, start=1):
            _do("ip", "-n", host, "link", "set", name, "mtu", str(MTU))
            _do("ip", "-n", host, "addr", "add", f"{network}.{end}/24", "dev", name)
            _do("ip", "-n", host, "link", "set", name, "up")

    def set_rate(self, rail: int, rate_mbit: float) -> None:
        """Both directions of a rail."""
        self.rates_mbit[rail] = rate_mbit
        shape = ["tbf", "rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "50ms"]
        for host in self._hosts:
            _do(
                "tc",
                "-n",
                host,
                "qdisc",
                "replace",
                "dev",
                f"rail{rail}",
                "root",
                "handle",
                "1:",
                *shape,
            )

    def cut(self, rail: int) -> None:
        """Pulls the cable: both carriers go."""
        _do("ip", "-n", self._hosts[0], "link", "set", f"rail{rail}", "down")

    def mend(self, rail: int) -> None:
        _do("ip", "-n", self._hosts[0], "link", "set", f"rail{rail}", "up")

    def start(
        self, script: Path, *arguments: str, per_host: int = 1, **options: str
    ) -> list[subprocess.Popen[str]]:
        """`per_host` ranks on each host. `options` are BRAID_ variables in lower case, without the
        prefix.
        """
        return [
            self._start_rank(rank, per_host, script, arguments, options)
            for rank in range(2 * per_host)
        ]

    def _start_rank(
        self,
        rank: int,
        per_host: int,
        script: Path,
        arguments: Sequence[str],
        options: dict[str, str],
    ) -> subprocess.Popen[str]:
        host = rank // per_host
        environment = {
            **self.environment(host),
            "RANK": str(rank), "LOCAL_RANK": str(rank % per_host), "WORLD_SIZE": str(2 * per_host),
            "LOCAL_WORLD_SIZE": str(per_host),
            **{f"BRAID_{name.upper()}": value for name, value in options.items()},
        }  # fmt: skip
        command = [*self.inside(host), sys.executable, str(script), *arguments]
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def environment(self, host: int) -> dict[str, str]:
        """What every process of the job has on this host."""
        rails = ",".join(f"10.99.{rail}.{host + 1}" for rail in range(len(self.rates_mbit)))
        return {
            **os.environ,
            "MASTER_ADDR": "10.98.0.1", "MASTER_PORT": "29400", "BRAID_BIND": "10.98.0.1",
            "BRAID_JOB_TOKEN": self._token, "BRAID_RDMA_ADDRS": rails,
        }  # fmt: skip

    def inside(self, host: int) -> list[str]:
        """What goes before a command that is to run on this host."""
        return ["ip", "netns", "exec", self._hosts[host]]

    def delay(self, rail: int, delay_ms: float) -> None:
        """Behind the rate, both ways; 0 takes it away."""
        self.set_rate(rail, self.rates_mbit[rail])
        for host in self._hosts:
            if delay_ms:
                _do(
                    *("tc", "-n", host, "qdisc", "add", "dev", f"rail{rail}"),
                    *("parent", "1:1", "netem", "delay", f"{delay_ms}ms", "limit", "10000"),
                )
