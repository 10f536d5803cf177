"""Starts examples/launch/train.py with every launcher of docs/launch.md, on two hosts of 2 ranks.

    sudo .venv/bin/python tests/launch/run.py [NAME...]     (make test-launch)

Every recipe has to print the checksum that the others print; then a rank is killed, and every
process of the job must end by itself, the launcher with an error. Hosts are network namespaces; the
daemons are Slurm's own. JobSet's controller is played: what it sets, and the command it runs.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import slurm
from hosts import ADDRESSES, NAMES, ROOT, SOFTWARE, Hosts, end, said
from jobset import check_manifests, container_of, expanded
from rails import why_not

LAUNCH = ROOT / "examples" / "launch"
PROGRAM = "examples/launch/train.py"
CHECKSUM = re.compile(r"(\d+) ranks, \d+ steps: checksum ([0-9a-f]{8})")
DEADLINE_S = float(os.environ.get("LAUNCH_DEADLINE_S", "300"))
ENDED_WITHIN_S = float(os.environ.get("LAUNCH_ENDED_S", "90"))
Job = list[subprocess.Popen[str]]
Recipe = Callable[..., Job]


class RecipeError(Exception):
    """A recipe did not do what it should."""


def torchrun(hosts: Hosts, rendezvous: str = "static", **more: str) -> Job:
    script = str(LAUNCH / "torchrun.sh")
    common = {"NODES": "2", "RANKS": "2", "HEAD": ADDRESSES[0], "RENDEZVOUS": rendezvous, **more}
    return [
        hosts.start(host, script, PROGRAM, NODE=str(host), ADDRESS=ADDRESSES[host], **common)
        for host in range(2)
    ]


def torchrun_c10d(hosts: Hosts, **more: str) -> Job:
    return torchrun(hosts, rendezvous="c10d", **more)


def mpirun(hosts: Hosts, **more: str) -> Job:
    """orted is started where ssh would start it."""
    agent = hosts.folder / "agent"
    words = " ".join(f"'{word}'" for word in hosts.command(1, "sh", "-c"))
    agent.write_text(f'#!/bin/sh\nshift\nexec {words} "$*"\n')
    agent.chmod(0o755)
    options = (
        "--allow-run-as-root --mca plm_rsh_agent "
        f"{agent} --mca oob_tcp_if_include front --mca plm_rsh_no_tree_spawn 1"
    )
    places = f"{NAMES[0]}:2,{NAMES[1]}:2"
    return [
        hosts.start(
            0,
            str(LAUNCH / "mpirun.sh"),
            PROGRAM,
            HOSTS=places,
            MASTER_ADDR=ADDRESSES[0],
            MPIRUN_OPTIONS=options,
            **more,
        )
    ]


def ray(hosts: Hosts, **more: str) -> Job:
    """One host; an actor pretends to be on none: two ranks as two processes of Ray's."""
    return with_ray(hosts, LAUNCH / "ray_actors.py", "--ranks", "2", PROGRAM, **more)


def with_ray(hosts: Hosts, program: Path, *words: str, **more: str) -> Job:
    return [
        hosts.start(
            0,
            str(ROOT / ".venv" / "bin" / "python"),
            str(program),
            *words,
            PYTHONPATH=str(SOFTWARE / "python"),
            RAY_DEDUP_LOGS="0",
            RAY_USAGE_STATS_ENABLED="0",
            **more,
        )
    ]


RAY_EXAMPLES = {
    "kv/02_ray.py": "12 of 12 requests: the tokens of one process; 1867776 bytes of pages",
    "weights/03_ray.py": "the reward went up: True",
}
"""What they say at their ends."""


def run_ray_examples(hosts: Hosts) -> None:
    """The examples whose processes are Ray's actors: they say what those of processes say."""
    for name, wanted in RAY_EXAMPLES.items():
        began = time.monotonic()
        job = with_ray(hosts, ROOT / "examples" / name)
        finish(job, name)
        last = [line for line in said(job[0]).splitlines() if not line.startswith("(")][-1]
        if last != wanted:
            raise RecipeError(f"{name}: asked for '{wanted}', found:\n{said(job[0])[-3000:]}")
        print(f"{name}: {last}, {time.monotonic() - began:.1f} s", flush=True)


def jobset(hosts: Hosts, **more: str) -> Job:
    """What JobSet's controller sets in each Pod, and the command that the manifest has."""
    container = container_of(LAUNCH / "jobset.yaml")
    return [
        hosts.start(
            host,
            *expanded(container, index=host, head=ADDRESSES[0]),
            MASTER_ADDR=ADDRESSES[0],
            NODE=str(host),
            **more,
        )
        for host in range(2)
    ]


def finish(job: Job, name: str) -> None:
    """All of it ends well, in time."""
    deadline = time.monotonic() + DEADLINE_S
    for process in job:
        try:
            code = process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise RecipeError(
                f"{name}: not through in {DEADLINE_S:g} s:\n{said(process)[-3000:]}"
            ) from None
        if code != 0:
            raise RecipeError(f"{name}: exit code {code}:\n{said(process)[-3000:]}")


def outcome(job: Job, name: str) -> tuple[int, str]:
    """Ranks and checksum that rank 0 printed."""
    finish(job, name)
    for process in job:
        if match := CHECKSUM.search(said(process)):
            return int(match[1]), match[2]
    raise RecipeError(f"{name}: no checksum:\n{said(job[0])[-3000:]}")


def ranks_of(marker: str) -> dict[int, int]:
    """Process ids of the job's ranks, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"MARKER={marker}".encode() not in environment or PROGRAM.encode() not in b" ".join(
            words
        ):
            continue
        values = dict(one.split(b"=", 1) for one in environment if b"=" in one)
        rank = next(
            (
                values[name]
                for name in (b"RANK", b"OMPI_COMM_WORLD_RANK", b"SLURM_PROCID")
                if name in values
            ),
            None,
        )
        is_python = words[0].endswith(b"python") or b"python" in words[0].rsplit(b"/", 1)[-1]
        if rank is not None and is_python and b"torchrun" not in b" ".join(words):
            found[int(rank)] = int(entry.name)
    return found


def kill_a_rank(recipe: Recipe, hosts: Hosts, name: str) -> float:
    """Seconds from a rank's death to the end of all others."""
    marker = f"{name}-{os.getpid()}"
    job = recipe(hosts, STEPS="1000000", MARKER=marker)
    deadline = time.monotonic() + DEADLINE_S
    while not any("step 3" in said(process) for process in job):
        if time.monotonic() > deadline or any(process.poll() is not None for process in job):
            raise RecipeError(f"{name}: did not begin:\n{said(job[0])[-3000:]}")
        time.sleep(0.1)
    ranks = ranks_of(marker)
    if sorted(ranks) != [0, 1, 2, 3]:
        raise RecipeError(f"{name}: found ranks {sorted(ranks)}")
    os.kill(ranks[3], signal.SIGKILL)
    killed = time.monotonic()
    while time.monotonic() < killed + ENDED_WITHIN_S:
        if all(process.poll() is not None for process in job) and not ranks_of(marker):
            break
        time.sleep(0.05)
    else:
        left = sorted(ranks_of(marker))
        raise RecipeError(
            f"{name}: ranks {left} are left {ENDED_WITHIN_S:g} s after rank 3's death"
        )
    took = time.monotonic() - killed
    if all(process.returncode == 0 for process in job):
        raise RecipeError(f"{name}: a rank was killed, and the launcher says that all is well")
    return took


def two_hosts() -> dict[str, Recipe]:
    return {
        "torchrun": torchrun,
        "torchrun-c10d": torchrun_c10d,
        "mpirun": mpirun,
        "slurm": slurm.sbatch,
        "jobset": jobset,
    }


def run_one(name: str, recipe: Recipe, hosts: Hosts) -> tuple[int, str]:
    began = time.monotonic()
    job = recipe(hosts)
    found = outcome(job, name)
    for process in job:
        end(process)
    print(
        f"{name}: {found[0]} ranks, checksum {found[1]}, {time.monotonic() - began:.1f} s",
        flush=True,
    )
    return found


def main() -> int:
    reason = why_not()
    if reason:
        print(f"test_launch: skipped: {reason}")
        return 77
    wanted = sys.argv[1:] or [*two_hosts(), "ray", "ray-examples", "manifests", "kill"]
    failures = []
    checksums = {}
    with Hosts() as hosts:
        for name in wanted:
            try:
                if name in two_hosts():
                    checksums[name] = run_one(name, two_hosts()[name], hosts)
                elif name == "ray":
                    run_one("ray", ray, hosts)
                elif name == "ray-examples":
                    run_ray_examples(hosts)
                elif name == "manifests":
                    print(
                        f"manifests: {check_manifests(LAUNCH)} of them fit their schemas",
                        flush=True,
                    )
                elif name == "kill":
                    for launcher in ("torchrun", "mpirun", "slurm"):
                        took = kill_a_rank(two_hosts()[launcher], hosts, launcher)
                        print(
                            f"{launcher}: all ended {took:.1f} s after a rank was killed",
                            flush=True,
                        )
                else:
                    raise RecipeError(
                        f"'{name}' is no recipe: {', '.join(two_hosts())}, ray, ray-examples, "
                        "manifests, kill"
                    )
            except RecipeError as failure:
                print(f"FAILED: {failure}", flush=True)
                failures.append(name)
    if len(set(checksums.values())) > 1:
        print(f"FAILED: launchers got other checksums: {checksums}")
        failures.append("checksums")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
