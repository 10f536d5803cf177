"""Files that were cut, flipped or mixed up: one line or a machine, never a traceback."""

import random

import pytest

from braid.topo.document import document, to_json
from braid.topo.errors import BadTopology
from braid.topo.read import read_text
from braid.topo.show import matrix, tables, tree
from braid.topo.show.html import page

_ROUNDS = 8  # more find more: 400 rounds found nothing when this was written


def look_at(data):
    """Reads bytes as the command would, and shows what came out in every view."""
    try:
        machine = read_text(data.decode("utf-8", errors="replace"))
    except BadTopology as error:
        said = str(error)
    else:
        show(machine)
        return True
    assert said.isprintable()
    assert len(said) < 400
    return False


def show(machine):
    """Every view; and what is written is read again as it was."""
    whole = document(machine)
    tables.rate_lines(whole.derived.links)
    assert tree.lines(machine)
    matrix.lines(machine, "nccl")
    assert page(whole)
    assert read_text(to_json(whole)) == machine


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def flip(data, rng):
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def splice(data, rng):
    """A piece of the file somewhere else in it."""
    a, b, c = (rng.randrange(len(data)) for _ in range(3))
    return data[:a] + data[b : b + rng.randrange(200)] + data[c:]


def swap_numbers(data, rng):
    """A number in place of another: sizes that nobody has."""
    text = data.decode()
    places = [i for i, c in enumerate(text) if c.isdigit()]
    i = rng.choice(places)
    return (
        text[:i] + rng.choice(("99999999999999999999", "-1", "0", "1e309", "")) + text[i + 1 :]
    ).encode()


@pytest.mark.parametrize("damage", [cut, flip, splice, swap_numbers])
def test_damaged(saved, damage):
    rng = random.Random(f"{saved.name} {damage.__name__}")
    data = saved.read_bytes()
    assert look_at(data)
    for _ in range(_ROUNDS):
        look_at(damage(data, rng))


def test_noise():
    rng = random.Random(7)
    for size in (1, 10, 1000, 100000):
        assert not look_at(rng.randbytes(size))
    for start in (b"{", b"[", b"<", b"<system", b"\x00", b"\xff\xfe<", b"GPU0", b"\tGPU0\tGPU1\n"):
        assert not look_at(start)
