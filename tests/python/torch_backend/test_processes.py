"""Which processes have ended, as another process of the host sees it."""

import os
import signal
import subprocess
import sys

from braid.torch.processes import has_ended, own_process


def started():
    """A process that says who it is, and waits."""
    code = (
        "from braid.torch.processes import own_process; print(own_process(), flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def test_a_process_has_ended_once_it_is_killed_though_nobody_has_waited_for_it():
    process, name = started()
    assert not has_ended(name)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(name)  # a zombie
    process.communicate()
    assert has_ended(name)


def test_a_stopped_process_has_not_ended():
    process, name = started()
    os.kill(process.pid, signal.SIGSTOP)
    assert not has_ended(name)
    os.kill(process.pid, signal.SIGCONT)
    process.communicate("\n")


def test_another_process_of_the_same_number_is_another_one():
    namespace, pid, start = own_process().split(":")
    assert not has_ended(f"{namespace}:{pid}:{start}")
    assert has_ended(f"{namespace}:{pid}:{int(start) - 1}")


def test_of_processes_elsewhere_nothing_is_known():
    namespace, pid, start = own_process().split(":")
    for name in ("", "1", "a:b", f"{namespace}x:{pid}:1", f"{namespace}:0:1", f"{namespace}:-1:1"):
        assert not has_ended(name), name
    assert not has_ended(f"{namespace}:{'9' * 30}:1")
    assert int(start) > 0
