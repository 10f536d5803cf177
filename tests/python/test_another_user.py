"""A process of another user beside a running job; ranks that are interrupted while they meet; names
that resolve slowly.

What needs a second user needs root, and says so where it is skipped.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from braid.launch import free_port

VICTIM, STRANGER = 12345, 65534
HERE = Path(__file__).parent
ATTACK_S = float(os.environ.get("BRAID_STRANGER_S", "5"))

# Programs become another user by themselves: this Python may lie where others cannot start it. Who
# has done that shows less of itself in /proc until it says that it may be dumped (4).
BECOME = """
import ctypes, os, sys
def become(user):
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1)
"""
JOB = """
import os, sys, time, numpy as np, braid
braid.join(braid.Identity(0, 1)).close()  # loads all that there is to load
become(int(sys.argv[2]))
with braid.init(tune=False) as comm:
    end, calls = time.monotonic() + float(sys.argv[1]), 0
    is_on = np.ones(1)
    while is_on[0]:
        mine = np.arange(3000, dtype="f4") + comm.rank + calls % 7
        whole = comm.all_reduce(mine)
        wanted = comm.size * (np.arange(3000) + calls % 7) + sum(range(comm.size))
        assert (whole == wanted).all(), calls
        calls += 1
        if calls % 100 == 0:
            is_on = comm.broadcast(np.array([float(time.monotonic() < end)]), 0)
    print("calls", calls, flush=True)
"""


@pytest.fixture
def network():
    """What begins a command in a network of the test's own, where nobody else listens."""
    script = "ip link set lo up && echo up && exec sleep 600"
    with subprocess.Popen(["unshare", "-n", "sh", "-c", script], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != b"up\n":
                pytest.skip("needs a network namespace and ip")
            yield ["nsenter", "-t", str(holder.pid), "-n", "--"]
        finally:
            holder.kill()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a second user needs root")


def _environ_of_a_rank(launcher: int) -> dict[bytes, bytes]:
    """Of a child of `launcher`, which has ranks."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for child in children:
            parts = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            found = dict(part.split(b"=", 1) for part in parts if b"=" in part)
            if b"RANK" in found:
                return found
        time.sleep(0.05)
    raise AssertionError("no rank was started")


@needs_root
def test_another_user_gets_nothing_and_stops_nothing(network, record_property):
    """BRAID_STRANGER_S has it go on for longer than some seconds."""
    folder = Path("/tmp") / f"braid_strangers_{os.getpid()}"
    (home := folder / "home").mkdir(parents=True)
    (scratch := folder / "stranger").mkdir()
    os.chown(home, VICTIM, VICTIM)
    os.chown(scratch, STRANGER, STRANGER)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "BRAID_TIMEOUT": "10s"}
    command = [*network, sys.executable, "-m", "braid.cli", "run", "-n", "3", "--"]
    try:
        job = subprocess.Popen(
            [*command, sys.executable, "-c", BECOME + JOB, str(ATTACK_S + 1), str(VICTIM)],
            env=environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        token = _environ_of_a_rank(job.pid)[b"BRAID_JOB_TOKEN"]
        stranger = [sys.executable, HERE / "stranger.py", str(STRANGER)]
        attack = subprocess.run(
            [*network, *stranger, str(ATTACK_S), str(VICTIM), scratch / "loot"],
            env={"PATH": os.environ["PATH"]},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=ATTACK_S + 60,
            check=False,
        )
        out, errors = job.communicate(timeout=60)
        assert attack.returncode == 0, attack.stderr
        told = json.loads(attack.stdout)
        loot = (scratch / "loot").read_bytes()
    finally:
        subprocess.run(["rm", "-rf", folder], check=False)
    lines = [line for line in errors.splitlines() if "store" in line]
    record_property("tried", told["tries"])
    record_property("got", told["successes"])
    record_property("log_lines", len(lines))
    assert job.returncode == 0, errors
    assert out.count("calls ") == 3
    assert told["successes"] == {}
    for kind in ("proc", "signal", "ptrace", "vm_readv", "getfd", "connect", "flood"):
        assert told["tries"][kind] > 0, kind
    assert len(loot) > 100  # it did read what is everybody's
    assert token not in loot
    assert lines, "the store says nothing about strangers"
    assert len(lines) < 2 * ATTACK_S + 20  # and not a line for each


@needs_root
def test_floods_of_another_user_do_not_keep_a_job_from_forming(ranks, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    program = tmp_path / "flood"
    subprocess.run([compiler, "-O1", "-o", program, HERE / "flood.c"], check=True)
    port = free_port()
    flooders = [
        subprocess.Popen([program, str(STRANGER), str(port), "12"], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for flooder in flooders:
            assert flooder.stdout is not None
            assert flooder.stdout.readline() == b"on\n"
        options = {"BRAID_STORE_PORT": str(port), "BRAID_TIMEOUT": "10s"}
        assert ranks(3, lambda comm: comm.all_gather_object(comm.rank), options) == [[0, 1, 2]] * 3
    finally:
        for flooder in flooders:
            flooder.kill()
            flooder.wait()


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_a_rank_that_waits_in_init(rank):
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "BRAID_JOB_TOKEN": "x",
        "BRAID_TIMEOUT": "30s",
    }
    # What starts in the background of a shell ignores Ctrl-C, and so do its children.
    program = (
        "import braid, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        " start = braid.init; print('on', flush=True); start()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "on\n"
        time.sleep(0.5)
        pressed = time.monotonic()
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=40)
    assert time.monotonic() - pressed < 3  # the wait itself is 0.05 s; Python has to end, too
    assert "KeyboardInterrupt" in errors


SLOW_NAME = """
import time, braid
join, Identity, Timeout = braid.join, braid.Identity, braid.Timeout  # which loads them
began = time.monotonic()
try:
    join(Identity(1, 2, store_address="slow.example", store_port=7),
               job_token="x", timeout=1.0)
except Timeout as error:
    print(time.monotonic() - began, error)
"""


@needs_root
def test_a_resolver_that_does_not_answer_does_not_outlast_the_deadline(tmp_path):
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs a mount namespace")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.77\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.77", 53))
        mount = f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf"
        done = subprocess.run(
            [
                "unshare",
                "-m",
                "sh",
                "-c",
                f'{mount} && exec "$0" -c "$1"',
                sys.executable,
                SLOW_NAME,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    took, words = done.stdout.split(" ", 1)
    assert "slow.example" in words
    assert float(took) < 5  # the resolver itself gives up after 10 s
