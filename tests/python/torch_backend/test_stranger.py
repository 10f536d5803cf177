"""A process of another user on the host, against a job that trains: for some seconds, at every port
and name, file and /proc entry that it can see. Needs root, which alone can start one.

BRAID_STRANGER_S is how long; `make stranger-test` has 60.
"""

import multiprocessing as mp
import os
import time

import pytest
import strangers
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_backend_data import numbers, same

from braid import _braid

SECONDS = float(os.environ.get("BRAID_STRANGER_S", "3"))

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="skipped: only root can start a process of another user"
)


def trained(steps):
    """The sum of a model's parameters after so many steps, each rank with data of its own."""
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(numbers(64, torch.float32, dist.get_rank(), salt=step)).square().sum()
        loss.backward()
        optimizer.step()
    return sum(p.double().sum().item() for p in model.parameters())


def train_for(seconds):
    """Steps, sums, messages and objects, each checked, until rank 0 says that it is enough: for so
    long after the first round, with which all doors are open.
    """
    rank, rounds, end = dist.get_rank(), 0, None
    want = trained(4)
    while True:
        assert trained(4) == want, f"round {rounds}"
        total = numbers(5000, torch.float32, rank, salt=rounds)
        dist.all_reduce(total)
        same(total, sum(numbers(5000, torch.float32, each, salt=rounds) for each in (0, 1)))
        said = [{"rank": rank, "round": rounds}]
        if rank == 0:
            dist.send_object_list(said, 1)
            dist.recv_object_list(said, 1)
        else:
            got = [None]
            dist.recv_object_list(got, 0)
            assert got == [{"rank": 0, "round": rounds}]
            dist.send_object_list(said, 0)
        assert rank == 1 or said == [{"rank": 1, "round": rounds}]
        rounds += 1
        end = time.monotonic() + seconds if end is None else end
        over = [time.monotonic() > end]
        dist.broadcast_object_list(over, 0)
        if over[0]:
            dist.barrier()
            return rounds


def stranger_main(pipe, pids, ports, names, mark, seconds):
    """In a process of its own."""
    strangers.become_nobody()
    end = time.monotonic() + seconds
    stranger = strangers.Stranger(pids, ports, names, mark)
    folders = [os.environ.get("XDG_RUNTIME_DIR", "/run/user"), os.path.expanduser("~/.cache")]
    while True:
        stranger.look_into_processes()
        stranger.enter_processes()
        stranger.read_files(folders)
        for name in names:
            stranger.knock_by_name(name)
        for port in ports:
            stranger.knock(port)
            stranger.read_store(port)
            stranger.forge(port, time.monotonic() + 0.3)
        if time.monotonic() > end:
            pipe.send(stranger.report())
            return


def doors_of(pids):
    """Ports and names, when the job has the last that it opens: rank 1 was sent a message."""
    end = time.monotonic() + 40
    while time.monotonic() < end:
        ports, names = strangers.ports_of(pids), strangers.names_of(pids)
        if sum("braid-" in name for name in names) == 2 and len(ports) >= 4:
            return ports, names
        time.sleep(0.1)
    raise AssertionError(f"the job has ports {ports} and names {names}")


@pytest.mark.parametrize("has_token", [True, False], ids=["token", "user's secret"])
def test_another_user_gets_nowhere(torch_ranks, tmp_path, has_token, record_property):
    token = "0123456789abcdef" * 4
    options = {"BRAID_LINKS": "shm,rdma", "BRAID_DEPTH": "2"}
    options["BRAID_JOB_TOKEN"] = token if has_token else ""
    started = torch_ranks.start(2, lambda: train_for(SECONDS + 3), options=options)
    pids = [process.pid for process, _ in started]
    mark = str(tmp_path / "mark")
    tmp_path.chmod(0o777)
    ours, theirs = mp.get_context("fork").Pipe(duplex=False)
    try:
        ports, names = doors_of(pids)
        stranger = mp.get_context("fork").Process(
            target=stranger_main, args=(theirs, pids, ports, names, mark, SECONDS)
        )
        stranger.start()
        assert ours.poll(SECONDS + 60), "the stranger said nothing"
        report = ours.recv()
        stranger.join(10)
    finally:
        rounds = torch_ranks.collect(started, timeout_s=SECONDS + 90)
    assert rounds[0] == rounds[1] > 0
    tried, got = report["tried"], report["got"]
    record_property("tried", tried)
    record_property("got", got)
    record_property("rounds", rounds)
    assert not got, got
    assert not os.path.exists(mark), "a rank ran the stranger's code"
    secret = token if has_token else _braid.user_secret().split(":")[0]
    assert secret.encode() not in report["seen"]
    for name in ("ptrace", "kill", "ports", "named sockets", "invitations read", "objects sent"):
        assert tried[name] >= 1, f"{name}: {tried}"
    assert tried["immediates"] > 1000, tried
