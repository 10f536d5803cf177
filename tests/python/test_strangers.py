"""Somebody who is not of the job reaches the port of an rdma link: he changes no byte and ends no
call. Needs no second user: the port is open to whoever connects.
"""

import time

import numpy as np
import pytest
import strangers

import braid

LINK = {"BRAID_LINKS": "rdma", "BRAID_DEPTH": "2", "BRAID_TIMEOUT": "10s"}
COUNT = 20_000


def summing(seconds):
    """A rank's part: all-reduces, each checked, for so long."""

    def body(comm):
        mine = np.arange(COUNT, dtype=np.float32) % 97 * (comm.rank + 1)
        want = np.arange(COUNT, dtype=np.float32) % 97 * sum(range(1, comm.size + 1))
        end, calls = time.monotonic() + seconds, 0
        is_over = np.zeros(1, np.float32)
        while is_over[0] == 0:
            got = mine.copy()
            comm.all_reduce(got)
            np.testing.assert_array_equal(got, want)
            calls += 1
            is_over[0] = time.monotonic() > end
            comm.all_reduce(is_over, op="max")
        assert all(link["state"] == "up" for link in comm.health()["links"]), comm.health()
        return calls

    return body


def fabric_ports(started, count):
    """Connections to the ports of the ranks on which libfabric listens, once all are there."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pids = [process.pid for process, _ in started]
        if len(strangers.ports_of(pids)) > count:  # rank 0's store has one, too
            ports = strangers.ports_of(pids)
            found = [sock for port in ports if (sock := strangers.greet_fabric(port))]
            if len(found) == count:
                return found
        time.sleep(0.05)
    raise AssertionError("no port of libfabric's")


@pytest.mark.parametrize(
    "kinds",
    [(strangers.ACK,), (strangers.PIECE,), (strangers.ASK, strangers.ANSWER)],
    ids=["acks", "pieces", "questions"],
)
def test_forged_immediates_change_nothing(ranks, kinds, record_property):
    def body():
        with braid.init(progress=False) as comm:
            return summing(2.5)(comm)

    started = ranks.start(2, body, LINK)
    sent = 0
    try:
        time.sleep(0.3)
        for sock in fabric_ports(started, 2):
            sent += strangers.sweep(sock, kinds, 2, time.monotonic() + 0.8)
            sock.close()
    finally:
        calls = ranks.collect(started)
    record_property("tried", {"immediates": sent})
    record_property("calls", calls)
    assert calls[0] == calls[1] > 10
    assert sent > 10_000
