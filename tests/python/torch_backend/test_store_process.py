"""Whether the process that has torch's store still does."""

import errno
import socket

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

from braid.torch.store_process import has_closed, where_it_listens


def made():
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


def failing(monkeypatch, error):
    """No connection is made any more."""

    def connect(_self, _address):
        raise type(error)(*error.args)  # one that was raised would keep the frames, and their store

    monkeypatch.setattr(socket.socket, "connect", connect)


def test_a_store_has_gone_once_nobody_listens():
    store = made()
    where = where_it_listens(PrefixStore("group", PrefixStore("braid", store)))
    assert where
    assert not has_closed(where)
    store.set("key", "asking has done it no harm")
    assert store.get("key") == b"asking has done it no harm"
    del store
    assert has_closed(where)


def test_a_store_without_a_process_has_not_gone(tmp_path):
    for store in (HashStore(), FileStore(str(tmp_path / "store"), 1)):
        assert where_it_listens(PrefixStore("group", store)) == []
    assert not has_closed([])


@pytest.mark.parametrize(
    ("error", "is_known"),
    [
        (TimeoutError("timed out"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (OSError(errno.EADDRNOTAVAIL, "No port is free here"), False),
        (OSError(errno.EHOSTUNREACH, "A firewall lets no new connection through"), False),
        (OSError(errno.EACCES, "Nor does a sandbox"), False),
        (OSError(errno.ECONNREFUSED, "Connection refused"), True),
    ],
)
def test_what_is_not_known_to_have_gone_counts_as_there(monkeypatch, error, is_known):
    store = made()
    where = where_it_listens(store)
    failing(monkeypatch, error)
    assert has_closed(where) == is_known


def test_a_name_without_an_address_has_not_gone(monkeypatch):
    store = made()

    def unknown(*_args, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert where_it_listens(store) == []


def test_an_address_that_this_host_has_no_way_to_says_nothing(monkeypatch):
    connect = socket.socket.connect

    def by_ipv4_alone(self, address):
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", by_ipv4_alone)
    store = made()
    by_ipv4, by_ipv6 = where_it_listens(store), [(socket.AF_INET6, ("::1", store.port, 0, 0))]
    assert not has_closed([*by_ipv6, *by_ipv4])
    del store
    assert has_closed([*by_ipv6, *by_ipv4])
    assert not has_closed(by_ipv6)
