"""What goes wrong is told by NIXL's answers, in time; nothing lands that was taken back."""

import signal
import time
from collections.abc import Callable

import numpy as np
import pytest
from agent import pattern
from agents import WAYS, Pair, Process, RefusedError

MIB = 1 << 20
QUICK = {"lease": "1500ms", "timeout": "4s"}


def quick(process: Callable[..., Process], way: str) -> Pair:
    return Pair(process("near"), process("far"), {**WAYS[way], **QUICK})


@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_is_killed(process: Callable[..., Process], way: str) -> None:
    pair = quick(process, way)
    ours, theirs = pair.blocks(1, 32 * MIB)
    pair.far.signal(signal.SIGSTOP)  # so that the transfer is under way when it dies
    pair.near.ask(
        "begin", 1, "WRITE", "far", [(ours[0], 32 * MIB)], [(theirs[0], 32 * MIB)], b"never"
    )
    pair.near.answer()
    pair.far.kill()
    state, took_s = pair.near.error_of(1)
    assert state == "nixlRemoteDisconnectError"
    assert took_s < 5
    assert "lost" in pair.near.words() or "peer_lost" in pair.near.words()
    pair.near.release(1)

    # Another process under the same name is served when the old one was removed.
    pair.near.leave("far")
    again = process("far2")
    again.open("far", {**WAYS[way], **QUICK})
    (new,) = again.blocks_of(1, MIB, None)
    assert pair.near.meet(again.metadata()) == "far"
    assert pair.near.move("WRITE", "far", [(ours[0], MIB)], [(new, MIB)], b"hello") == "DONE"
    assert again.listen(1) == [("near", b"hello")]
    assert again.bytes_of(0) == pair.near.bytes_of(0)[:MIB]


@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_is_stopped(process: Callable[..., Process], way: str) -> None:
    """Its pages are not written by what had ended before it went on."""
    pair = quick(process, way)
    ours, theirs = pair.blocks(1, 8 * MIB)
    pair.far.signal(signal.SIGSTOP)
    pair.near.ask("begin", 1, "WRITE", "far", [(ours[0], 8 * MIB)], [(theirs[0], 8 * MIB)], b"late")
    pair.near.answer()
    state, took_s = pair.near.error_of(1)
    assert state not in ("DONE", "PROC")
    assert took_s < 9
    pair.near.release(1)
    pair.near.fill(0, 99)  # the source may be used again
    pair.far.signal(signal.SIGCONT)
    assert pair.far.listen(1, 2) == []
    # By a rail what had left before the end may have landed; what the source holds now may not.
    found = np.frombuffer(pair.far.bytes_of(0), np.uint8)
    assert np.all((found == 0) | (found == pattern(8 * MIB, 1)))
    assert way == "rails" or not found.any()


def test_release_of_what_is_under_way_is_a_cancel(process: Callable[..., Process]) -> None:
    pair = quick(process, "one host")
    ours, theirs = pair.blocks(1, 64 * MIB)
    for number in range(8):
        pair.near.ask(
            "begin", number, "WRITE", "far", [(ours[0], 64 * MIB)], [(theirs[0], 64 * MIB)]
        )
        pair.near.answer()
        assert pair.near.release(number) < 8
        # Nothing can land any more: what the target writes now stays.
        pair.far.fill(0, number + 1)
        time.sleep(0.05)
        assert set(pair.far.bytes_of(0)) == {number + 1}
    assert pair.near.move("WRITE", "far", [(ours[0], MIB)], [(theirs[0], MIB)]) == "DONE"


def test_memory_that_was_unregistered_there(process: Callable[..., Process]) -> None:
    pair = quick(process, "one host")
    ours, theirs = pair.blocks(2, MIB)
    assert pair.near.move("WRITE", "far", [(ours[0], MIB)], [(theirs[0], MIB)]) == "DONE"
    pair.far.forget_blocks(0)
    pair.far.fill(0, 5)
    pair.near.ask("begin", 1, "WRITE", "far", [(ours[0], MIB)], [(theirs[0], MIB)])
    try:
        assert pair.near.answer() != "DONE"
        assert pair.near.error_of(1)[0] not in ("DONE", "PROC")
    except RefusedError:
        pass
    assert set(pair.far.bytes_of(0)) == {5}
    assert "unregistered" in pair.near.words()


def test_memory_that_is_unregistered_here_while_it_is_used(process: Callable[..., Process]) -> None:
    pair = quick(process, "one host")
    ours, theirs = pair.blocks(1, 64 * MIB)
    pair.near.ask("begin", 1, "WRITE", "far", [(ours[0], 64 * MIB)], [(theirs[0], 64 * MIB)])
    pair.near.answer()
    pair.near.forget_blocks(0)  # waits for the transfer's end
    before = pair.far.bytes_of(0)
    pair.near.fill(0, 3)
    assert pair.near.wait(1) == "DONE"
    assert pair.far.bytes_of(0) == before


def test_metadata_that_is_no_good(process: Callable[..., Process]) -> None:
    pair = Pair(process("near"), process("far"), WAYS["one host"])
    pair.near.blocks_of(1, MIB, 1)
    pair.far.blocks_of(1, MIB, None)
    good = pair.far.metadata()
    for bad in (good[: len(good) // 2], good.replace(b"far", b"fat", 1)[:-3], b""):
        with pytest.raises(RefusedError):
            pair.near.meet(bad)
    # A byte of the descriptor, which is signed.
    at = good.rindex(b"\x00") - 4
    with pytest.raises(RefusedError):
        pair.near.meet(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    assert pair.near.meet(good) == "far"


def test_another_job(process: Callable[..., Process]) -> None:
    near = process("near", BRAID_JOB_TOKEN="one job's token")
    far = process("far", BRAID_JOB_TOKEN="another job's token")
    for name, one in (("near", near), ("far", far)):
        one.open(name, {"nics": "none", "hosts": "127.0.0.1"})
        one.blocks_of(1, MIB, 1)
    with pytest.raises(RefusedError):
        near.meet(far.metadata())
    assert "job" in near.words()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"ports": "1"}, "ports"),
        ({"port": "seven"}, "seven"),
        ({"local": "perhaps"}, "perhaps"),
        ({"lease": "long"}, "long"),
        ({"nics": ":x"}, "NIC"),
    ],
)
def test_settings_that_cannot_be(
    process: Callable[..., Process], settings: dict[str, str], word: str
) -> None:
    one = process("one")
    with pytest.raises(RefusedError):
        one.open("one", settings)
    assert word in one.words()


def test_a_connection_that_cannot_be_made(process: Callable[..., Process]) -> None:
    pair = quick(process, "one host")
    pair.blocks(1, MIB)
    pair.near.connect("far")
    pair.far.kill()
    pair.near.leave("far")
    with pytest.raises(RefusedError):
        pair.near.say("far", b"anybody?")


def test_agents_that_come_and_go_leave_nothing(process: Callable[..., Process]) -> None:
    near = process("near")
    near.open("near", {**WAYS["one host"], **QUICK})
    (ours,) = near.blocks_of(1, MIB, 1)
    counts = []
    for i in range(6):
        far = process(f"far{i}")
        far.open(f"far{i}", {**WAYS["one host"], **QUICK})
        (theirs,) = far.blocks_of(1, MIB, None)
        near.meet(far.metadata())
        assert near.move("WRITE", f"far{i}", [(ours, MIB)], [(theirs, MIB)], b"x") == "DONE"
        near.leave(f"far{i}")
        far.end()
        counts.append(near.threads())
    assert counts[0] == counts[-1]
