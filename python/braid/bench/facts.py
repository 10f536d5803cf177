"""Facts about the machine and the code, for records."""

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import braid
from braid.errors import InvalidArgument
from braid.record.bench import FabricLink, Versions
from braid.record.parts import Host
from braid.this_host import boot_id

_OUR_HEADER = Path("include/braid/braid.h")
_CODE = ("src", "bindings", "include", "python")
_SECRET = "BRAID_JOB_TOKEN"  # noqa: S105 - the name of a secret, not one
_PREFIXES = ("BRAID_", "NCCL_", "TORCH_SYMM_MEM", "CUDA_VISIBLE", "CUDA_DEVICE_MAX")


def host(num_hosts: int = 1) -> Host:
    """This machine, of so many that ranks run on."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = len(os.sched_getaffinity(0))
    kernel = platform.release()
    return Host(_cpu_model(), cores, round(memory, 1), kernel, num_hosts, _tcp())


def _tcp() -> str:
    """Of this network namespace, which may have another than the machine."""
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return control.read_text(encoding="ascii").strip() if control.exists() else ""


def num_hosts(comm: braid.Comm) -> int:
    """On how many machines the ranks of this comm are. Collective."""
    if comm.size == 1:
        return 1
    return num_different(comm, boot_id())


def num_different(comm: braid.Comm, words: str) -> int:
    """How many different words the ranks have. Collective."""
    number = int.from_bytes(hashlib.blake2b(words.encode(), digest_size=7).digest(), "big")
    return len(np.unique(np.asarray(comm.all_gather(np.array([number], dtype=np.int64)))))


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions() -> Versions:
    """What is running. torch's version is read without importing it."""
    from braid import _braid

    try:
        torch: str | None = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    python = platform.python_version()
    return Versions(
        braid.__version__, python, np.__version__, torch, _braid.build_type, _braid.reduce_isa()
    )


def _git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run([git, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit(given: str = "") -> tuple[str, bool]:
    """The commit of braid's checkout that holds the working directory, and whether files differ
    from it: git is asked, whatever a caller says.

    `given` is for a tree without git. Nobody can tell what was changed there, so it counts as
    changed. InvalidArgument where git says another commit.
    """
    top = _git("rev-parse", "--show-toplevel")
    if not top or not (Path(top) / _OUR_HEADER).exists():
        return (given, True) if given else ("unknown", False)
    head = _git("rev-parse", "HEAD") or "unknown"
    if not head.startswith(given):
        raise InvalidArgument(
            f"--commit: {given} was said, and git says that this tree is of {head}; "
            "leave it out where there is git"
        )
    return head, _is_changed(top)


def _is_changed(top: str) -> bool:
    """Whether a file of git's differs, or there is one more that would be compiled or imported."""
    status = ("-C", top, "status", "--porcelain")
    return bool(_git(*status, "--untracked-files=no") or _git(*status, "--", *_CODE))


def command() -> str:
    """The command line as it was typed, with the program's own path shortened."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None else ""
    named = module.startswith("braid.") and module != "braid.cli"
    return " ".join([*(["python", "-m", module] if named else ["braid"]), *sys.argv[1:]])


def fabric(comm: braid.Comm) -> list[FabricLink]:
    """The links of this comm."""
    return [FabricLink(x.name, x.kind, x.rate_gbps, x.latency_ns, x.source) for x in comm.links]


def options(chosen: dict[str, str]) -> dict[str, str]:
    """BRAID_ variables of the environment and the command's own, without the secret."""
    from braid import _braid

    known = {name for name, *_ in _braid.options()} - {_SECRET}
    return {name: value for name, value in os.environ.items() if name in known} | chosen


def variables() -> dict[str, str]:
    """The environment's variables that change what is measured on GPUs."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_PREFIXES) and name != _SECRET
    }
