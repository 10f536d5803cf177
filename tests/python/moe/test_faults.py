"""A rank that is killed or stopped: the others get an error that names it, or go on without it
where the caller asked for that; within the deadline, and nothing hangs. And a link between hosts
that is reset: nobody notices.
"""

import os
import random
import re
import signal
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from connections import cut_connections
from moe_data import make, same

import braid
from braid.moe import Buffer

H, M = 256, 24
SIZE = 3
DEADLINE_S = 3  # what a rank that lives may take on a machine that does much else


def rounds(comm, shrinks, until, ready):
    """Calls low-latency dispatch and combine until `until` says stop; answers what was raised."""
    hint = Buffer.get_low_latency_rdma_size_hint(M, H, comm.size, 4 * comm.size)
    buffer = Buffer(comm, 1 << 20, hint, low_latency_mode=True, enable_shrink=shrinks)
    own = make(4, comm.rank, comm.size, H)
    x = own.x.astype(ml_dtypes.bfloat16)
    number = first_mask = 0  # whoever is done first is missed by the others later
    start = time.monotonic()
    try:
        while not until(number, buffer):
            start = time.monotonic()
            rows, _, handle, _, _ = buffer.low_latency_dispatch(
                x, own.ids, M, 4 * comm.size, use_fp8=False
            )
            out, _, _ = buffer.low_latency_combine(rows, own.ids, own.weights, handle)
            there = [not buffer.runtime.mask >> r & 1 for r in range(comm.size)]
            kept = np.array(there)[own.ids // 4] * own.weights
            same(out, own.x * kept.sum(1)[:, None])
            number += 1
            first_mask = first_mask or buffer.runtime.mask
            ready(number)
    except braid.Error as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "done", number, first_mask


def wait_for(what, is_so, processes=()):
    """Until it is so, or one of the processes has ended: its answer says why."""
    end = time.monotonic() + 60
    while not is_so() and all(process.exitcode is None for process in processes):
        assert time.monotonic() < end, f"not within a minute: {what}"
        time.sleep(0.002)


# More of them by hand: BRAID_TEST_FAULT_POINTS=25 makes a hundred.
@pytest.mark.parametrize("seed", range(int(os.environ.get("BRAID_TEST_FAULT_POINTS", "1"))))
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("shrinks", [False, True])
def test_a_rank_ends_at_a_random_point(ranks, seed, how, shrinks, tmp_path):
    lost = seed % SIZE

    def everyone(what):
        return len(list(tmp_path.glob(f"{what}?"))) == SIZE

    def body():
        # Ranks meet before the deadline counts: a loaded machine may start them seconds apart.
        rank = int(os.environ["RANK"])
        (tmp_path / f"up{rank}").touch()
        wait_for("all ranks are up", lambda: everyone("up"))
        comm = braid.init()
        if rank == lost:
            (tmp_path / "pid").write_text(str(os.getpid()))

        def ready(number):
            if number == 3:
                (tmp_path / f"ready{rank}").touch()

        def until(number, buffer):
            if not buffer.runtime.mask:
                return False
            (tmp_path / f"missed{rank}").touch()
            return number > 5 and (tmp_path / "over").exists()

        return rounds(comm, shrinks, until, ready)

    started = ranks.start(SIZE, body, {"BRAID_TIMEOUT": f"{DEADLINE_S}s"})
    processes = [process for process, _ in started]
    survivors = [r for r in range(SIZE) if r != lost]
    wait_for("three rounds", lambda: everyone("ready"), processes)
    for process, pipe in started:
        assert process.exitcode is None, f"ended early: {pipe.poll(0) and pipe.recv()}"
    time.sleep(random.Random(seed).random() * 0.02)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, how)
    if shrinks:
        left = [processes[r] for r in survivors]
        missed = [tmp_path / f"missed{r}" for r in survivors]
        wait_for("the lost one is missed", lambda: all(m.exists() for m in missed), left)
        (tmp_path / "over").touch()
    answers = {r: started[r][1].recv() if started[r][1].poll(60) else None for r in survivors}
    if how == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
        assert started[lost][1].poll(60)
        ok, late = started[lost][1].recv()
        assert ok, late
        assert late[0] in ("PeerLost", "Timeout", "Unavailable", "InvalidArgument"), late
    for process in processes:
        process.join(60)
        assert process.exitcode is not None, "a rank hangs"
    for rank, answer in answers.items():
        assert answer is not None, f"rank {rank} hangs"
        ok, (name, *rest) = answer
        assert ok
        if shrinks:
            assert (name, rest[1]) == ("done", 1 << lost), (name, rest)
            continue
        message, took_s = rest
        assert name in ("PeerLost", "Timeout", "Unavailable")
        assert re.search(rf"rank(s)? .*{lost}", message), message
        assert took_s < DEADLINE_S + 5


def lie_on_hosts(per_host):
    """So many ranks share each host; between hosts is one link."""
    os.environ["BRAID_HOST_ID"] = f"host{int(os.environ['RANK']) // per_host}"
    os.environ["BRAID_LINKS"] = "rdma" if per_host == 1 else "rdma,shm"


@pytest.mark.parametrize("per_host", [1, 2])
def test_a_link_that_is_reset_between_or_in_calls_loses_nothing(ranks, per_host):
    rounds_each = 200

    def body():
        lie_on_hosts(per_host)
        comm = braid.init()
        cuts, timers = [], []

        def ready(number):
            if comm.rank == 1 and number % 30 == 20:
                delay_s = random.Random(number).random() * 0.004
                timers.append(threading.Timer(delay_s, lambda: cuts.append(cut_connections())))
                timers[-1].start()

        answer = rounds(comm, False, lambda number, _: number == rounds_each, ready)
        for timer in timers:
            timer.join()
        return answer, sum(cuts)

    answers = ranks.collect(ranks.start(2 * per_host, body))
    assert [answer for answer, _ in answers] == [("done", rounds_each, 0)] * (2 * per_host)
    assert answers[1][1] >= 6


def test_a_way_that_is_lost_for_good_is_as_a_rank_that_is_lost(ranks):
    """After 16 renewals it is; each rank goes on by itself then, as if the other were not there."""
    most = 500

    def body():
        lie_on_hosts(1)
        comm = braid.init()

        def ready(_number):
            if comm.rank == 1:
                cut_connections()

        return rounds(
            comm, True, lambda number, buffer: buffer.runtime.mask or number == most, ready
        )

    answers = ranks.collect(ranks.start(2, body, {"BRAID_TIMEOUT": "6s"}))
    assert [(name, mask) for name, _, mask in answers] == [("done", 2), ("done", 1)], answers


def test_a_rank_that_is_killed_behind_a_link_is_given_up(ranks):
    """With rows enough that its way breaks while there are more to put."""
    hidden, tokens, experts = 8192, 256, 2 * SIZE

    def body():
        lie_on_hosts(1)
        comm = braid.init()
        hint = Buffer.get_low_latency_rdma_size_hint(tokens, hidden, SIZE, experts)
        buffer = Buffer(comm, num_rdma_bytes=hint, low_latency_mode=True, enable_shrink=True)
        x = np.full((tokens, hidden), 3, np.float32)  # 8 MiB for the lost one
        ids = np.tile(np.array([[0, 4], [2, 5]]), (tokens // 2, 1))  # of ranks 0 and 2, 1 and 2
        weights = np.ones((tokens, 2), np.float32)
        masks = []
        for call in range(4):
            if call == 1 and comm.rank == SIZE - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            rows, _, handle, _, _ = buffer.low_latency_dispatch(
                x, ids, tokens, experts, use_fp8=False
            )
            out, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
            same(out, np.full((tokens, hidden), 3 if buffer.runtime.mask else 6))
            masks.append(buffer.runtime.mask)
        return masks

    started = ranks.start(SIZE, body, {"BRAID_TIMEOUT": "6s"})
    answers = ranks.collect(started, killed={SIZE - 1: signal.SIGKILL})
    assert answers[:-1] == [[0, 4, 4, 4]] * (SIZE - 1)
