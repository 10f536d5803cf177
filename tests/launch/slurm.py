"""Slurm's own daemons on the two hosts: slurmctld on the first, a slurmd on each. Nobody is asked
for a key (auth/none): they see nothing but each other.
"""

import subprocess
import time
from pathlib import Path

from hosts import ADDRESSES, NAMES, ROOT, Hosts, said

CONF = """\
ClusterName=braid
SlurmctldHost={names[0]}({addresses[0]})
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
SlurmctldPort=6817
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldTimeout=30
InactiveLimit=0
{nodes}PartitionName=all Nodes={names[0]},{names[1]} Default=YES State=UP MaxTime=INFINITE
"""
_running: dict[Path, list[subprocess.Popen[str]]] = {}


def _configure(hosts: Hosts) -> Path:
    nodes = "".join(
        f"NodeName={name} NodeAddr={address} NodeHostname={name} Port=6818 CPUs=4 "
        "RealMemory=1000 State=UNKNOWN\n"
        for name, address in zip(NAMES, ADDRESSES, strict=True)
    )
    conf = hosts.folder / "slurm.conf"
    conf.write_text(CONF.format(names=NAMES, addresses=ADDRESSES, folder=hosts.folder, nodes=nodes))
    # Namespaces have a /sys of their own without cgroups, and nothing here wants them.
    (hosts.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (hosts.folder / "state").mkdir(exist_ok=True)
    for name in NAMES:
        (hosts.folder / f"spool.{name}").mkdir(exist_ok=True)
    return conf


def _daemons(hosts: Hosts) -> None:
    """Started once."""
    if hosts.folder in _running:
        return
    conf = _configure(hosts)
    started = [hosts.start(0, "slurmctld", "-D", "-c", SLURM_CONF=str(conf))]
    for host, name in enumerate(NAMES):
        started.append(hosts.start(host, "slurmd", "-D", "-N", name, SLURM_CONF=str(conf)))
    _running[hosts.folder] = started
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(daemon.poll() is not None for daemon in started):
            break
        seen = hosts.start(0, "sinfo", "-h", "-o", "%D %T", SLURM_CONF=str(conf))
        seen.wait(30)
        if said(seen).split() == ["2", "idle"]:
            return
        time.sleep(0.5)
    words = "\n".join(said(daemon)[-1500:] for daemon in started)
    logs = "\n".join(path.read_text()[-1500:] for path in hosts.folder.glob("slurm*.log"))
    raise RuntimeError(f"Slurm's daemons did not come up:\n{words}\n{logs}")


def sbatch(hosts: Hosts, **more: str) -> list[subprocess.Popen[str]]:
    """The batch script; sbatch waits for it, and its log is what the job said."""
    _daemons(hosts)
    log = hosts.folder / f"job{time.monotonic_ns()}"
    log.touch()
    job = hosts.start(
        0,
        *("sbatch", "--wait", "--nodes", "2", "--ntasks-per-node", "2", "--output", str(log)),
        str(ROOT / "examples" / "launch" / "slurm.sbatch"),
        "examples/launch/train.py",
        SLURM_CONF=str(hosts.folder / "slurm.conf"),
        **more,
    )
    job.log = log  # type: ignore[attr-defined]
    return [job]
