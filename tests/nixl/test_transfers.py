"""Two agents in two processes: every byte, every notification, by NIXL's own interface."""

import numpy as np
from agent import pattern
from agents import Pair

KIB = 1024


def cut(base: int, nbytes: int, count: int) -> list[tuple[int, int]]:
    return [(base + i * nbytes, nbytes) for i in range(count)]


def test_nixl_knows_the_backend(host_pair: Pair) -> None:
    facts = host_pair.near.facts()
    assert "BRAID" in facts["plugins"]
    assert set(facts["kinds"]) == set(facts["backend_kinds"]) == {"DRAM_SEG", "VRAM_SEG"}
    assert facts["settings"]["lease"] == "5s"
    assert facts["backend_settings"] == {"nics": "none"}  # read out of the backend's own fields


def test_write_with_a_notification(pair: Pair) -> None:
    ours, theirs = pair.blocks(1, 64 * KIB)
    expected = pattern(64 * KIB, 1).tobytes()
    pair.far.ask("check_at_notice", 0, expected)
    assert (
        pair.near.move(
            "WRITE", "far", cut(ours[0], 64 * KIB, 1), cut(theirs[0], 64 * KIB, 1), b"here"
        )
        == "DONE"
    )
    assert pair.far.answer() == (0, b"here")


def test_read_with_a_notification(pair: Pair) -> None:
    ours, theirs = pair.blocks(1, 64 * KIB)
    pair.far.fill(0, 7)
    state = pair.near.move("READ", "far", [(ours[0] + 3, 1000)], [(theirs[0] + 9, 1000)], b"read")
    assert state == "DONE"
    assert pair.far.listen(1) == [("near", b"read")]
    expected = pattern(64 * KIB, 1)
    expected[3:1003] = 7
    assert pair.near.bytes_of(0) == expected.tobytes()


def test_a_notification_comes_behind_the_bytes_of_all_registrations(pair: Pair) -> None:
    """As vLLM has it: a registration for each layer, one transfer of all, the pages shuffled."""
    layers, pages, page = 24, 40, 4 * KIB
    ours, theirs = pair.blocks(layers, pages * page)
    rng = np.random.default_rng(5)
    here, there, expected = [], [], []
    for layer in range(layers):
        source, target = rng.permutation(pages), rng.permutation(pages)
        here += [(ours[layer] + int(i) * page, page) for i in source]
        there += [(theirs[layer] + int(i) * page, page) for i in target]
        block = np.zeros(pages * page, np.uint8)
        block.reshape(pages, page)[target] = pattern(pages * page, 1 + layer).reshape(pages, page)[
            source
        ]
        expected.append(block.tobytes())
    for round_number in range(3):
        for layer in range(layers):
            pair.far.fill(layer, 0)
        last = layers - 1
        pair.far.ask("check_at_notice", last, expected[last])
        note = b"round %d" % round_number
        assert pair.near.move("WRITE", "far", here, there, note) == "DONE"
        assert pair.far.answer() == (0, note)
        assert [pair.far.bytes_of(i) == expected[i] for i in range(layers)] == [True] * layers


def test_ranges_of_any_lengths(pair: Pair) -> None:
    ours, theirs = pair.blocks(2, 1 << 20)
    rng = np.random.default_rng(9)
    cuts = [np.sort(rng.choice(1 << 20, 300, replace=False)) for _ in range(2)]
    here, there = [], []
    expected = [np.zeros(1 << 20, np.uint8) for _ in range(2)]
    for block, edges in enumerate(cuts):
        for low, high in zip(edges[:-1:2], edges[1::2], strict=True):
            nbytes = int(high - low)
            here.append((ours[block] + int(low), nbytes))
            there.append((theirs[1 - block] + int(low), nbytes))
            expected[1 - block][low:high] = pattern(1 << 20, 1 + block)[low:high]
    order = rng.permutation(len(here))
    assert (
        pair.near.move("WRITE", "far", [here[i] for i in order], [there[i] for i in order])
        == "DONE"
    )
    assert [pair.far.bytes_of(i) == expected[i].tobytes() for i in range(2)] == [True, True]


def test_prepared_lists_of_a_hundred_thousand(host_pair: Pair) -> None:
    count, nbytes = 100_000, 64
    ours, theirs = host_pair.blocks(1, count * nbytes)
    rng = np.random.default_rng(3)
    source = rng.permutation(count).astype(np.int32)
    target = rng.permutation(count).astype(np.int32)
    states = host_pair.near.prepared(
        "WRITE",
        "far",
        cut(ours[0], nbytes, count),
        cut(theirs[0], nbytes, count),
        [(source, target)],
        b"all",
    )
    assert states == ["DONE", "DONE"]
    assert host_pair.far.listen(2) == [("near", b"all")] * 2
    expected = np.zeros((count, nbytes), np.uint8)
    expected[target] = pattern(count * nbytes, 1).reshape(count, nbytes)[source]
    assert host_pair.far.bytes_of(0) == expected.tobytes()


def test_notifications_without_a_transfer(pair: Pair) -> None:
    """Empty ones, long ones, in order, and to itself."""
    pair.blocks(1, KIB)
    long = pattern(300_000, 2).tobytes()
    for message in (b"", b"x", long, b"y" * 65536):
        pair.near.say("far", message)
        assert pair.far.listen(1) == [("near", message)]
    for i in range(500):
        pair.near.say("far", b"%d" % i)
    assert pair.far.listen(500) == [("near", b"%d" % i) for i in range(500)]
    pair.near.say("near", b"to myself")
    assert pair.near.listen(1) == [("near", b"to myself")]


def test_an_empty_and_a_long_notification_with_a_transfer(pair: Pair) -> None:
    ours, theirs = pair.blocks(1, KIB)
    for message in (b"long" * 50_000,):
        assert pair.near.move("WRITE", "far", [(ours[0], 64)], [(theirs[0], 64)], message) == "DONE"
        assert pair.far.listen(1) == [("near", message)]


def test_a_transfer_within_one_agent(pair: Pair) -> None:
    (ours,) = pair.near.blocks_of(1, 8 * KIB, 4)
    assert (
        pair.near.move("WRITE", "near", [(ours, 4 * KIB)], [(ours + 4 * KIB, 4 * KIB)], b"me")
        == "DONE"
    )
    half = pattern(8 * KIB, 4)[: 4 * KIB].tobytes()
    assert pair.near.bytes_of(0) == half + half
    assert pair.near.listen(1) == [("near", b"me")]


def test_many_small_ones_both_ways_at_once(pair: Pair) -> None:
    count = 3000
    ours, theirs = pair.blocks(1, 64 * KIB)
    here, there = cut(ours[0], 256, 256), cut(theirs[0], 256, 256)
    pair.near.ask("many", "far", here, there, count, 32)
    pair.far.ask("many", "near", there, here, count, 32)
    assert pair.near.answer() == {"DONE": count}
    assert pair.far.answer() == {"DONE": count}
    for one in (pair.near, pair.far):
        found = sorted(int(message[1:]) for _, message in one.listen(count // 10))
        assert found == list(range(0, count, 10))  # each once, none missing
