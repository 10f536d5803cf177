"""Two hosts for launchers: the namespaces of tests/two_hosts, each with a name, a table of names,
and Debian's Slurm and Open MPI where they would be if they were installed (an overlay that nobody
else sees).
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

sys.path.insert(0, str(Path(__file__).parent.parent / "two_hosts"))
from rails import Rails

ROOT = Path(__file__).resolve().parent.parent.parent

SOFTWARE = ROOT / "build" / "launch"
NAMES = ("n1", "n2")
ADDRESSES = ("10.98.0.1", "10.98.0.2")
PREPARE = """
hostname "$1"
mount -t overlay overlay -o "lowerdir=$2/root/usr:/usr" /usr
mount --bind "$3/hosts" /etc/hosts
shift 3
exec "$@"
"""


class Hosts:
    """Processes that it started end with it."""

    def __init__(self) -> None:
        self._rails = Rails([800])
        self._folder = tempfile.TemporaryDirectory(prefix="braid-launch-")
        self.folder = Path(self._folder.name)
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self._rails.__enter__()
        names = "127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n" for address, name in zip(ADDRESSES, NAMES, strict=True)
        )
        (self.folder / "hosts").write_text(names)
        # What Debian's alternatives would be.
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "mpirun").symlink_to("/usr/bin/mpirun.openmpi")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._started:
            end(process)
        self._rails.__exit__(kind, value, trace)
        self._folder.cleanup()

    def command(self, host: int, *words: str) -> list[str]:
        """The words, on a host."""
        prepare = ["unshare", "-m", "-u", "sh", "-c", PREPARE, "sh"]
        own = [NAMES[host], str(SOFTWARE), str(self.folder)]
        return [*self._rails.inside(host), *prepare, *own, *words]

    def environment(self, host: int, **more: str) -> dict[str, str]:
        """Of every process on a host; braid finds its address by itself."""
        environment = self._rails.environment(host)
        for name in ("MASTER_ADDR", "MASTER_PORT", "BRAID_BIND", "BRAID_RDMA_ADDRS"):
            del environment[name]
        places = (ROOT / ".venv" / "bin", self.folder / "bin", "/usr/sbin", "/usr/bin", "/bin")
        environment["PATH"] = ":".join(map(str, places))
        environment |= {
            "BRAID_TUNE": "off",
            "BRAID_TIMEOUT": "60s",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "front",
            "PYTHON": str(ROOT / ".venv" / "bin" / "python"),
        }
        return environment | more

    def start(self, host: int, *words: str, **more: str) -> subprocess.Popen[str]:
        """A process of its own group on a host; what it says is kept in a file of its own."""
        log = (self.folder / f"log{len(self._started)}").open("w+")
        process = subprocess.Popen(
            self.command(host, *words),
            env=self.environment(host, **more),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        process.log = Path(log.name)  # type: ignore[attr-defined]
        self._started.append(process)
        return process


def said(process: subprocess.Popen[str]) -> str:
    """All that it has written until now."""
    text: str = process.log.read_text()  # type: ignore[attr-defined]
    return text


def end(process: subprocess.Popen[str]) -> None:
    """It and its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
