"""Who sits between two ranks and relays their messages can cut them, and change nothing."""

import random
import secrets
import socket
import threading
import time

import pytest

from braid.torch.wire import Unproved, Wire

MESSAGES = [(3, b"first"), (3, b"second" * 40), (0, b""), (3, b"first"), (-1, b"x" * 3000)]
_HELLO, _ANSWER, _PROOF = 44, 64, 32


def taken(sock, count):
    data = b""
    while len(data) < count:
        some = sock.recv(count - len(data))
        assert some
        data += some
    return data


class Relayed:
    """What a sender said, after a greeting that was relayed as it is, and a reader that waits."""

    def __init__(self, messages, reader_secret="secret"):
        sender_end, self._from_sender = socket.socketpair()
        reader_end, self._to_reader = socket.socketpair()
        self.got, self.error = [], None
        self._reader = threading.Thread(target=self._read, args=(reader_end, reader_secret))
        sender = threading.Thread(target=self._send, args=(sender_end, messages))
        self._reader.start()
        sender.start()
        self._to_reader.sendall(taken(self._from_sender, _HELLO))
        self._from_sender.sendall(taken(self._to_reader, _ANSWER))
        self._to_reader.sendall(taken(self._from_sender, _PROOF))
        self.said = b""
        while some := self._from_sender.recv(1 << 16):
            self.said += some
        sender.join()

    @staticmethod
    def _send(sock, messages):
        wire, end = Wire(sock, lambda: None), time.monotonic() + 10
        wire.greet_receiver(1, "secret", end)
        for tag, data in messages:
            wire.send_message(tag, data, end)
        wire.shut()

    def _read(self, sock, secret):
        wire = Wire(sock, lambda: None)
        try:
            assert wire.greet_sender(2, secret, time.monotonic() + 10) == 1
            while True:
                tag, count = wire.read_header()
                self.got.append((tag, bytes(wire.read(count))))
        except OSError as error:
            self.error = str(error)
        wire.shut()

    def deliver(self, said):
        """What the reader got, and why it ended."""
        self._to_reader.sendall(said)
        self._to_reader.close()
        self._reader.join(10)
        return self.got, self.error


def ends_of(messages):
    """Where each message ends in what was said."""
    ends, at = [], 0
    for _, data in messages:
        at += 16 + 32 + len(data) + 32
        ends.append(at)
    return ends


def test_what_is_relayed_as_it_is_arrives():
    relayed = Relayed(MESSAGES)
    got, why = relayed.deliver(relayed.said)
    assert got == MESSAGES
    assert "closed" in why


def test_a_changed_bit_is_noticed_wherever_it_is():
    draw = random.Random(1)
    ends = ends_of(MESSAGES)
    for trial in range(250):
        relayed = Relayed(MESSAGES)
        at = draw.randrange(len(relayed.said)) if trial > 60 else trial * 3
        altered = bytearray(relayed.said)
        altered[at] ^= 1 << draw.randrange(8)
        got, why = relayed.deliver(bytes(altered))
        num_before = sum(end <= at for end in ends)
        assert got == MESSAGES[:num_before], at
        assert "altered" in why, at


def test_messages_that_are_repeated_dropped_or_in_another_order_are_noticed():
    a, b, c, d, end = ends_of(MESSAGES)
    for parts, num_right in (
        ([(0, a), (0, a)], 1),
        ([(a, b)], 0),
        ([(0, a), (b, c)], 1),
        ([(c, d), (a, b)], 0),  # the first and the fourth message are alike
        ([(0, d), (0, a)], 4),
        ([(0, a), (a + 48, end)], 1),
    ):
        relayed = Relayed(MESSAGES)
        got, why = relayed.deliver(b"".join(relayed.said[i:j] for i, j in parts))
        assert got == MESSAGES[:num_right], parts
        assert "altered" in why


def test_a_message_of_another_connection_is_noticed():
    first, second = Relayed(MESSAGES), Relayed(MESSAGES)
    assert first.said != second.said
    assert second.deliver(first.said)[0] == []
    first.deliver(b"")


def test_a_message_that_is_cut_is_none():
    relayed = Relayed(MESSAGES)
    end = ends_of(MESSAGES)[1]
    assert relayed.deliver(relayed.said[: end - 1])[0] == MESSAGES[:1]


def test_strangers_prove_nothing():
    for hello in (secrets.token_bytes(_HELLO), b"braidp2p" + bytes(36)):
        ours, theirs = socket.socketpair()
        theirs.sendall(hello + bytes(_PROOF))
        with pytest.raises(Unproved):
            Wire(ours, lambda: None).greet_sender(2, "secret", time.monotonic() + 2)
        theirs.close()
