"""The door where a rank takes messages: strangers who knock and say nothing, a lack of descriptors,
and who is let in.
"""

import contextlib
import multiprocessing as mp
import os
import resource
import socket
import threading
import time

import pytest
import torch

from braid.torch import doors
from braid.torch import post as post_file
from braid.torch.callbacks import Callbacks
from braid.torch.messages import receive, send
from braid.torch.post import Post
from braid.torch.wire import Unproved


class Place:
    """A meeting of two ranks of this process."""

    name, size, timeout_s = "test", 2, 20.0

    def __init__(self, rank, store, *, is_here):
        self.rank, self._store, self._is_here = rank, store, is_here

    def is_one_host(self):
        return self._is_here

    def address_of(self, _rank):
        return "127.0.0.1"

    def secret(self, purpose):
        return f"secret of {purpose}"

    def set(self, key, text):
        self._store[key] = text

    def get(self, keys, _missing, _check, _timeout_s=None):
        end = time.monotonic() + 10
        while not all(key in self._store for key in keys):
            assert time.monotonic() < end
            time.sleep(0.01)
        return [self._store[key] for key in keys]


@pytest.fixture(params=[True, False], ids=["one host", "two hosts"])
def pair(request):
    """Both ends; the second listens already."""
    store = {}
    posts = [
        Post(Place(rank, store, is_here=request.param), lambda: None, Callbacks("test"))
        for rank in (0, 1)
    ]
    posts[1]._open()
    yield posts, store["post/1"]
    for post in posts:
        post.close(ConnectionError("the test is over"), is_orderly=False)


def passes(posts, timeout_s=10.0):
    """Seconds that a message takes from rank 0 to rank 1."""
    began = time.monotonic()
    got = torch.empty(100)
    works = [receive(posts[1], got, 0, 5), send(posts[0], torch.arange(100.0), 1, 5)]
    for work in works:
        work.get_future()
    while not all(work.is_completed() for work in works) and time.monotonic() < began + timeout_s:
        time.sleep(0.01)
    for work in works:
        assert work.is_completed(), "no message came through"
        work.wait()
    assert torch.equal(got, torch.arange(100.0))
    return time.monotonic() - began


def test_strangers_who_say_nothing(pair):
    """They hold a few threads and descriptors, and hold up nobody."""
    posts, where = pair
    threads, held = threading.active_count(), []
    for _ in range(60):
        held.append(doors.connect(where, 5))
    time.sleep(0.2)
    assert threading.active_count() - threads <= post_file._MOST_STRANGERS + 2
    assert passes(posts) < 4
    for sock in held:
        sock.close()


def test_strangers_are_given_seconds(pair, monkeypatch):
    monkeypatch.setattr(post_file, "_GREETING_S", 0.3)
    _, where = pair
    with doors.connect(where, 5) as sock:
        began = time.monotonic()
        sock.settimeout(5)
        assert sock.recv(1) == b"", "it is to be closed"
        assert 0.2 < time.monotonic() - began < 3


def test_a_lack_of_descriptors_is_waited_out(pair):
    posts, where = pair
    family = socket.AF_UNIX if where.startswith("here ") else socket.AF_INET
    last = where.rsplit(" ", 1)[1]
    address = f"\0{last}" if family == socket.AF_UNIX else ("127.0.0.1", int(last))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(family) as knocks:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
        try:
            knocks.connect(address)
            time.sleep(0.4)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert passes(posts) < 4


def flood(where):
    """In a process of its own: comes and goes as fast as it can."""
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    while True:
        with contextlib.suppress(OSError), doors.connect(where, 1) as sock:
            sock.sendall(b"braidp2p" + os.urandom(60))


def test_a_flood_ends_no_message_service(pair):
    posts, where = pair
    stranger = mp.get_context("fork").Process(target=flood, args=(where,))
    stranger.start()
    try:
        time.sleep(0.3)
        for _ in range(5):
            passes(posts)
    finally:
        stranger.kill()
        stranger.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="skipped: only root can become another user")
def test_another_user_is_turned_away_on_one_host():
    """By both ends, whatever he knows."""
    door, where = doors.listen(None)
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        with contextlib.suppress(Unproved):
            doors.connect(where, 5)
            os._exit(1)
        os._exit(0)
    sock, _ = door.accept()
    with sock, door, pytest.raises(Unproved, match="user 65534"):
        doors.check_user(sock)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
