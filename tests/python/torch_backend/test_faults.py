"""Ranks that die, leave or give up: an error on the others in time, and nobody hangs at exit."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_backend_data import all_ranks, mine, same

import braid
from braid.launch import free_port

RANK_1 = {1: signal.SIGKILL}


def lost(call) -> float:
    """Seconds until the call raises PeerLost."""
    began = time.monotonic()

    def until_it_fails() -> None:
        for _ in range(1000):
            call()

    with pytest.raises((braid.PeerLost, braid.Timeout), match="rank 1"):
        until_it_fails()
    return time.monotonic() - began


def leave_the_others() -> None:
    dist.group.WORLD.abort()


def test_a_killed_rank(torch_ranks):
    def body():
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        waits = [lost(lambda: dist.all_reduce(mine(100_000)))]
        waits.append(lost(lambda: dist.all_reduce(mine(10), async_op=True).wait()))
        leave_the_others()
        return max(waits)

    waits = torch_ranks.collect(torch_ranks.start(3, body, timeout_s=60), killed=RANK_1)
    assert max(waits[0], waits[2]) < 10


def test_a_killed_rank_that_somebody_receives_from(torch_ranks):
    """No message was ever sent: the group's comm tells."""

    def body():
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        took_s = lost(lambda: dist.recv(torch.empty(1), 1))
        leave_the_others()
        return took_s

    waits = torch_ranks.collect(torch_ranks.start(2, body, timeout_s=60), killed=RANK_1)
    assert waits[0] < 10


def test_a_killed_rank_whose_child_lives(torch_ranks):
    """The child had the connections of messages, and the other side waited for its deadline."""

    def body():
        child = torch.zeros(1, dtype=torch.int64)
        if dist.get_rank() == 1:
            dist.recv(child, 0)  # a connection each way
            child[0] = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            dist.send(child, 0)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.send(child, 1)
        dist.recv(child, 1)
        waits = [lost(lambda: dist.recv(child.clone(), 1)), lost(lambda: dist.send(child, 1))]
        os.kill(int(child), signal.SIGKILL)
        leave_the_others()
        return max(waits)

    waits = torch_ranks.collect(torch_ranks.start(2, body, timeout_s=30), killed=RANK_1)
    assert waits[0] < 10


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_rank_that_is_killed_while_training(torch_ranks, kind):
    """C++ waits for the gradients; the error comes through it with braid's words."""

    def body():
        model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 10))
        model = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
        for step in range(1000):
            if dist.get_rank() == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            began = time.monotonic()
            try:
                model(torch.ones(4, 200)).sum().backward()
            except (braid.Error, RuntimeError) as error:
                assert "rank 1" in str(error)  # noqa: PT017
                leave_the_others()
                return time.monotonic() - began
        return None

    waits = torch_ranks.collect(torch_ranks.start(3, body, timeout_s=60), killed=RANK_1)
    assert max(waits[0], waits[2]) < 10


def test_a_rank_that_stays_away_is_a_timeout(torch_ranks):
    def body():
        group = dist.new_group(timeout=timedelta(seconds=1))
        dist.all_reduce(torch.ones(1), group=group)
        if dist.get_rank() == 1:
            time.sleep(3)
            return None
        began = time.monotonic()
        with pytest.raises(braid.Timeout, match="rank 1"):
            dist.all_reduce(torch.ones(1), group=group)
        return time.monotonic() - began

    waits = torch_ranks(2, body, timeout_s=60)
    assert 0.5 < waits[0] < 2.5


@pytest.mark.parametrize("late", [0, 1])
def test_a_group_whose_first_call_failed_has_failed(torch_ranks, late):
    """Who went on to its second call met the late rank in its first: the sum of both was wrong on
    all ranks, without a word.
    """

    def body():
        group, errors = dist.new_group(timeout=timedelta(seconds=1)), []
        if dist.get_rank() == late:
            time.sleep(2)
        for step in range(3):
            began = time.monotonic()
            with pytest.raises((braid.Timeout, braid.PeerLost)) as caught:
                dist.all_reduce(torch.tensor([10.0**step]), group=group)
            errors.append((str(caught.value), time.monotonic() - began))
        dist.barrier()  # of the other group
        return errors

    found = torch_ranks(2, body)
    for rank, errors in enumerate(found):
        assert f"rank {late}" in errors[0][0], errors
        assert (errors[0][1] > 0.9) == (rank != late), errors
        for text, took_s in errors[1:]:
            assert "an earlier call failed" in text
            assert took_s < 0.5
    assert f"rank {1 - late} failed" in found[late][0][0]


def test_a_group_whose_first_call_was_interrupted_has_failed(torch_ranks):
    def body():
        group = dist.new_group(timeout=timedelta(seconds=10))
        if dist.get_rank() == 0:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                dist.all_reduce(torch.ones(1), group=group)
            with pytest.raises(braid.PeerLost, match="an earlier call was interrupted"):
                dist.all_reduce(torch.ones(1), group=group)
        else:
            time.sleep(1)
            with pytest.raises(braid.PeerLost, match="rank 0 was interrupted"):
                dist.all_reduce(torch.ones(1), group=group)
        dist.barrier()

    torch_ranks(2, body)


@pytest.mark.parametrize("first", ["all_reduce", "send", "monitored_barrier"])
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_that_leaves_before_the_first_call(torch_ranks, leaver, first):
    """No connection closes, as there is none yet: it was a timeout, after 30 minutes by default."""

    def body():
        if dist.get_rank() == leaver:
            dist.destroy_process_group()
            time.sleep(4)  # rank 0's process is the store's too
            return None
        group, began = dist.group.WORLD, time.monotonic()
        call = {
            "all_reduce": lambda: dist.all_reduce(mine(4)),
            "send": lambda: dist.send(mine(4), leaver),
            "monitored_barrier": lambda: group.monitored_barrier(timedelta(seconds=20)),
        }[first]
        with pytest.raises(braid.PeerLost, match=f"rank {leaver} has left"):
            call()
        return time.monotonic() - began

    assert torch_ranks(2, body)[1 - leaver] < 3


@pytest.mark.parametrize("given_s", [None, 30])
def test_braids_own_timeout_holds_where_torch_was_given_none(ranks, given_s):
    def body():
        more = {} if given_s is None else {"timeout": timedelta(seconds=given_s)}
        dist.init_process_group("braid", **more)
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(2.5)
        began = time.monotonic()
        try:
            dist.barrier()
        except braid.Error:
            leave_the_others()
            return time.monotonic() - began
        dist.destroy_process_group()
        return None

    waits = ranks.collect(ranks.start(2, body, {"BRAID_TIMEOUT": "1s"}))
    assert waits[0] is None if given_s else 0.5 < waits[0] < 2.4


@pytest.mark.parametrize("first", ["all_reduce", "send", "monitored_barrier"])
def test_a_rank_that_is_killed_before_the_first_call(torch_ranks, first):
    """It writes no word, and no connection closes: it was a timeout, 30 minutes by default."""

    def body():
        group = dist.new_group(timeout=timedelta(seconds=20))
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        call = {
            "all_reduce": lambda: dist.all_reduce(mine(4), group=group),
            "send": lambda: dist.send(mine(4), 1, group=group),
            "monitored_barrier": lambda: group.monitored_barrier(timedelta(seconds=20)),
        }[first]
        began = time.monotonic()
        # In a barrier rank 2 hears from rank 0 that it has left, or that the store has.
        is_told = first == "monitored_barrier" and dist.get_rank() == 2
        with pytest.raises(braid.PeerLost, match="" if is_told else "rank 1 was killed"):
            call()
        took_s = time.monotonic() - began
        if dist.get_rank() == 0:
            time.sleep(2)  # its process is the store's too
        return took_s

    waits = torch_ranks.collect(torch_ranks.start(3, body), killed=RANK_1)
    assert max(waits[0], waits[2]) < 5, waits


def test_abort_ends_calls_that_wait_here_and_elsewhere(torch_ranks):
    def body():
        dist.barrier()
        began = time.monotonic()
        if dist.get_rank() == 0:
            work = dist.all_reduce(mine(4), async_op=True)  # rank 1 does not come
            queued = dist.all_reduce(mine(4), async_op=True)
            time.sleep(0.3)
            dist.distributed_c10d._abort_process_group()
            for each in (work, queued):
                with pytest.raises(braid.PeerLost):
                    each.wait()
            return time.monotonic() - began
        time.sleep(0.6)
        with pytest.raises(braid.PeerLost, match=r"rank 0.*aborted the group"):
            dist.all_reduce(mine(4))
        dist.distributed_c10d._abort_process_group()
        return time.monotonic() - began

    def main():
        dist.init_process_group("braid", timeout=timedelta(seconds=60))
        return body()

    waits = torch_ranks.collect(torch_ranks._ranks.start(2, main))
    assert max(waits) < 10


def test_abort_ends_the_first_call_with_its_reason(torch_ranks):
    """What waits for rank 0 in the store is a first call; the store is there."""

    def body():
        store = dist.group.WORLD.get_group_store()
        if dist.get_rank() == 0:
            store.wait(["said"], timedelta(seconds=40))
            return None
        works = [dist.all_reduce(mine(4), async_op=True), dist.isend(mine(4), 0)]
        time.sleep(0.3)
        dist.group.WORLD.abort()
        said = [str(work.exception()) for work in works if not work.is_success()]
        store.set("said", "")
        return said

    every = torch_ranks(2, body, timeout_s=60)[1]
    assert len(every) == 2
    for said in every:
        assert "rank 1 aborted the group" in said
        assert "store has gone" not in said


def test_calls_after_the_end(torch_ranks):
    def body():
        group = dist.new_group()
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        group.send([tensor], dist.get_rank()).wait()  # which nobody asks for
        dist.destroy_process_group(group)
        for call in (
            lambda: group.allreduce([tensor]).wait(),
            lambda: group.recv([tensor], 1 - dist.get_rank()).wait(),
            lambda: group.send([tensor], dist.get_rank()).wait(),
            lambda: group.recv([tensor], dist.get_rank()).wait(),
            lambda: group.barrier().wait(),
            group.monitored_barrier,
        ):
            with pytest.raises(braid.InvalidArgument, match="was destroyed"):
                call()
        group.shutdown()
        group.abort()

    torch_ranks(2, body)


PROGRAM = """
import sys, time, torch, torch.distributed as dist, braid.torch
dist.init_process_group("braid")
second = dist.new_group()
if {meets}:
    dist.barrier()
work = dist.all_reduce(torch.ones(10), group=second, async_op=True) if {pending} else None
if dist.get_rank() == 1 and {raises}:
    raise ValueError("broken")
try:
    dist.all_reduce(torch.ones(5))
    print("done")
except braid.PeerLost as error:
    print("lost:", error)
"""


def run(tmp_path, meets=True, **what):
    """The program on two ranks that never call destroy_process_group."""
    return run_program(tmp_path, PROGRAM.format(meets=meets, **what), 2)


def run_program(tmp_path, text, size):
    """What each rank printed, and its exit code. The store is in rank 0's process."""
    script = tmp_path / "program.py"
    script.write_text(text)
    job = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    environment = {**os.environ, **job, "BRAID_TUNE": "off", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    with ThreadPoolExecutor() as readers:  # a rank ends though nobody has read the one before it
        said = list(readers.map(lambda rank: rank.communicate(timeout=60), ranks))
    return [(*each, rank.returncode) for each, rank in zip(said, ranks, strict=True)]


def test_what_begins_after_the_store_has_gone_is_a_lost_peer(torch_ranks):
    """Not torch's own error, which has no class of braid's: first messages, and a barrier."""

    def body():
        dist.barrier()
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(braid.PeerLost):  # rank 0 enters no second one
            dist.all_reduce(mine(10))
        for call in (
            dist.new_group,  # the first word to a socket that is closed there may seem to arrive
            lambda: dist.recv(torch.ones(1), 0),
            lambda: dist.send(torch.ones(1), 0),
            lambda: dist.group.WORLD.monitored_barrier(timedelta(seconds=5)),
        ):
            with pytest.raises(braid.PeerLost, match="the job's store has gone"):
                call()
        leave_the_others()

    torch_ranks.collect(torch_ranks.start(2, body, timeout_s=60), killed={0: signal.SIGKILL})


def test_a_fork_is_refused_at_every_call(torch_ranks):
    """It has no threads of the group's, so what they do never ended. The parent goes on."""

    def said(call) -> str:
        try:
            call()
        except braid.InvalidArgument as error:
            return str(error)
        return "no error"

    def in_fork(calls) -> list[str]:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # nothing is told then
            os.write(write, "\n".join(said(call) for call in calls).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as told:
            return told.read().split("\n")

    def body():
        other, group = 1 - dist.get_rank(), dist.group.WORLD
        one = torch.ones(1)
        dist.all_reduce(one, async_op=True).wait()
        for send in (dist.get_rank() == 0, dist.get_rank() == 1):
            (dist.send if send else dist.recv)(one, other)
        unused = dist.new_group()
        calls = [
            lambda: dist.all_reduce(one),
            lambda: dist.all_reduce(one, async_op=True).wait(),
            lambda: dist.all_reduce(one, group=unused),
            dist.barrier,
            lambda: group.monitored_barrier(timedelta(seconds=1)),
            lambda: dist.send(one, other),
            lambda: dist.recv(one, other),
            lambda: dist.recv(one),
        ]
        for text in (told := in_fork(calls)):
            assert "cannot be used in its fork" in text
        dist.barrier()
        dist.all_reduce(total := mine(4), group=unused)
        same(total, sum(all_ranks(4)))
        return len(told)

    assert torch_ranks(2, body) == [8, 8]


def test_a_program_that_forgets_to_leave_ends(tmp_path):
    for out, err, code in run(tmp_path, pending=True, raises=False):
        assert (out.strip(), code) == ("done", 0), err
        assert "braid:" not in err


LATE = """
import os, time, torch, torch.distributed as dist, braid.torch
from braid.torch.processes import has_ended, own_process
dist.init_process_group("braid")
groups = [dist.new_group() for _ in range(2)]
store = [own_process()]
{call}
if dist.get_rank() == 1:
    while not has_ended(store[0]):
        time.sleep(0.05)
    time.sleep(0.1)
if {destroys}:
    dist.destroy_process_group()
"""
LAST_CALLS = {
    "collective": "dist.broadcast_object_list(store)",
    "message": "dist.send_object_list(store, 1) if dist.get_rank() == 0 else"
    " dist.recv_object_list(store, 0) if dist.get_rank() == 1 else None",
}


@pytest.mark.parametrize("call", LAST_CALLS.values(), ids=LAST_CALLS)
@pytest.mark.parametrize("destroys", [True, False], ids=["destroys", "forgets"])
def test_a_rank_that_leaves_behind_the_stores_process_prints_nothing(tmp_path, call, destroys):
    """torch printed its C++ stack: a word of leaving was written into a store that had gone."""
    for out, err, code in run_program(tmp_path, LATE.format(call=call, destroys=destroys), 3):
        assert (out, err, code) == ("", "", 0)


MUTE = """
import os, signal, subprocess, time
import torch, torch.distributed as dist, braid, braid.torch
from datetime import timedelta
dist.init_process_group("braid", timeout=timedelta(seconds=2))
others = [dist.new_group() for _ in range(3)]
store = dist.group.WORLD.get_group_store()
if dist.get_rank() == 0:
    keeps = os.getpid() if {is_stopped} else os.fork()
    if keeps == 0:
        time.sleep(60)
        os._exit(0)
    store.set("keeps", str(keeps))
    store.wait(["read"])
    os.kill(os.getpid(), signal.SIGSTOP if {is_stopped} else signal.SIGKILL)
keeps = int(store.get("keeps"))
store.set("read", "yes")
time.sleep(0.5)
began = time.monotonic()
try:
    {call}
except braid.Timeout as error:
    print(error)
dist.destroy_process_group()
print("seconds", time.monotonic() - began)
# Once this process has ended: its thread in the store's call must not wake up as Python ends.
subprocess.Popen(["sh", "-c", f"sleep 2; kill -9 {{keeps}}"], stdout=subprocess.DEVNULL)
"""
FIRST_CALLS = {
    "collective": "dist.all_reduce(torch.ones(4))",
    "message": "dist.send(torch.ones(4), 0)",
    "group": "dist.new_group(timeout=timedelta(seconds=2))",
    "monitored": "dist.group.WORLD.monitored_barrier(timeout=timedelta(seconds=2))",
}


@pytest.mark.parametrize(
    ("call", "is_stopped"),
    [*((call, True) for call in FIRST_CALLS), ("collective", False)],
)
def test_a_store_that_never_answers_is_a_timeout(tmp_path, call, is_stopped):
    """torch waits for it without a limit: rank 1 hung."""
    program = MUTE.format(is_stopped=is_stopped, call=FIRST_CALLS[call])
    (_, _, killed), (out, err, code) = run_program(tmp_path, program, 2)
    assert (code, killed) == (0, -signal.SIGKILL), err
    assert "timed out" in out, (out, err)
    assert "store does not answer" in out, (out, err)
    assert float(out.split()[-1]) < 10


def test_an_exception_before_the_first_call_is_told_to_the_others(tmp_path):
    (out, err, code), _ = run(tmp_path, meets=False, pending=False, raises=True)
    assert "rank 1 failed: ended by an exception" in out, err
    assert code == 0, err


def test_a_program_that_ends_by_an_exception_takes_nobody_hostage(tmp_path):
    """Rank 1 fails with a call on its way that rank 0 never joins."""
    (out, err, code), (_, err_1, code_1) = run(
        tmp_path, pending="dist.get_rank() == 1", raises=True
    )
    assert out.startswith("lost:"), out + err
    assert "rank 1" in out
    assert code == 0, err
    assert code_1 == 1, err_1
    assert "ValueError: broken" in err_1
