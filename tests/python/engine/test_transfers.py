"""All forms of transfers between processes, by each way."""

import os
import pickle
import queue
import threading
from pathlib import Path

import engine_peers
import numpy as np
import pytest
from engine_peers import Process, options, pattern

import braid
from braid.engine import ScatterPart

BYTES = 200_000
PAGE = 1000
PAGES = BYTES // PAGE
LIMIT_S = 60


@pytest.fixture(params=list(engine_peers.WAYS))
def way(request):
    return request.param


@pytest.fixture
def engine(way):
    with braid.Engine(**options(way, "a")) as made:
        yield made


@pytest.fixture
def other(way):
    with Process(options(way, "b"), BYTES, salt=2) as process:
        yield process


def test_a_write_lands_and_is_counted(engine, other):
    memory = pattern(BYTES, 1)
    region = engine.register(memory)
    expected = pattern(BYTES, 2)
    expected[77:1077] = memory[500:1500]
    other.begin("expect", 7, 1)
    engine.write(region, other.descriptor, 1000, src_offset=500, dst_offset=77, imm=7).wait(LIMIT_S)
    other.answer()
    np.testing.assert_array_equal(other("bytes"), expected)
    assert other("count", 7) == 0
    engine.write(region, other.descriptor, imm=8).wait(LIMIT_S)  # all of it
    np.testing.assert_array_equal(other("bytes"), memory)
    assert other("count", 8) == 1


@pytest.mark.parametrize(
    "made_of",
    [list, tuple, np.int32, np.uint64, np.float64, lambda ids: np.repeat(ids, 2)[::2]],
    ids=["list", "tuple", "int32", "uint64", "float64", "strided"],
)
def test_pages_go_where_their_numbers_say(engine, other, made_of):
    random = np.random.default_rng(3)
    memory = pattern(BYTES, 1)
    region = engine.register(memory)
    sources, targets = random.permutation(PAGES)[:50], random.permutation(PAGES - 1)[:50]
    expected = pattern(BYTES, 2)
    for source, target in zip(sources, targets, strict=True):
        at = 100 + target * PAGE
        expected[at : at + 900] = memory[source * PAGE + 3 : source * PAGE + 903]
    engine.write_pages(
        region,
        other.descriptor,
        900,
        made_of(sources),
        made_of(targets),
        src_stride=PAGE,
        dst_stride=PAGE,
        src_offset=3,
        dst_offset=100,
        imm=9,
    ).wait(LIMIT_S)
    other("expect", 9, 50)
    np.testing.assert_array_equal(other("bytes"), expected)


def test_reads_bring_what_is_there(engine, other):
    memory = pattern(BYTES, 1)
    region = engine.register(memory)
    theirs, expected = pattern(BYTES, 2), memory.copy()
    expected[10:5010] = theirs[2000:7000]
    engine.read(region, other.descriptor, 5000, dst_offset=10, src_offset=2000).wait(LIMIT_S)
    np.testing.assert_array_equal(memory, expected)
    expected[7 * PAGE : 8 * PAGE] = theirs[3 * PAGE : 4 * PAGE]
    expected[2 * PAGE : 3 * PAGE] = theirs[199 * PAGE :]
    engine.read_pages(region, other.descriptor, PAGE, [7, 2], [3, 199]).wait(LIMIT_S)
    np.testing.assert_array_equal(memory, expected)
    np.testing.assert_array_equal(other("bytes"), theirs)


@pytest.mark.parametrize("offsets", [list, tuple, np.int32, np.uint64])
def test_pages_of_several_planes_are_one_transfer(engine, other, offsets):
    """Regions of ours, places of one region there; first as stretches, then by a list."""
    memory = [pattern(20 * PAGE + 7 * n, n) for n in range(5)]
    regions = [engine.register(each) for each in memory]
    ours, theirs = ([7 * n for n in range(5)], [40 * PAGE * n for n in range(5)])
    if offsets not in (list, tuple):
        ours, theirs = np.array(ours, offsets), np.array(theirs, offsets)
    expected = pattern(BYTES, 2)
    sources, targets = [3, 19, 0, 5], [38, 0, 11, 12]
    for n in range(5):
        for source, target in zip(sources, targets, strict=True):
            at = 40 * PAGE * n + target * PAGE
            begin = 7 * n + source * PAGE
            expected[at : at + PAGE] = memory[n][begin : begin + PAGE]
    for round_number in range(2):
        other.begin("expect", 9 + round_number, 20)
        ticket = engine.write_pages(
            regions, other.descriptor, PAGE, sources, targets,
            src_offset=ours, dst_offset=theirs, imm=9 + round_number,
        )  # fmt: skip
        ticket.wait(LIMIT_S)
        other.answer()
        np.testing.assert_array_equal(other("bytes"), expected)
        assert other("count", 9 + round_number) == 0
    for each in memory:
        each[:] = 0
    engine.read_pages(
        regions, [other.descriptor] * 5, PAGE, sources, targets, dst_offset=ours, src_offset=theirs
    ).wait(LIMIT_S)
    for n in range(5):
        whole = np.zeros_like(memory[n])
        for source in sources:
            begin = 7 * n + source * PAGE
            whole[begin : begin + PAGE] = pattern(whole.size, n)[begin : begin + PAGE]
        np.testing.assert_array_equal(memory[n], whole)


def test_both_write_to_each_other(engine, other):
    memory = pattern(BYTES, 1)
    region = engine.register(memory)
    expected = engine.expect(3, 1)
    other("write_to", pickle.loads(pickle.dumps(region.descriptor)), 3)
    expected.wait(LIMIT_S)
    np.testing.assert_array_equal(memory, pattern(BYTES, 2))


def test_messages_keep_their_order_and_name_who_sent_them(engine, other):
    tickets = [engine.send(other.address, f"message {i}".encode()) for i in range(20)]
    got = [other("recv") for _ in range(20)]
    assert [m.data for m in got] == [f"message {i}".encode() for i in range(20)]
    assert {m.sender for m in got} == {"a"}
    assert len({m.incarnation for m in got}) == 1
    for ticket in tickets:
        ticket.wait(LIMIT_S)


def test_a_notification_comes_behind_its_bytes(engine, other):
    memory = pattern(BYTES, 5)
    region = engine.register(memory)
    other.begin("notification_and_bytes")
    engine.write(region, other.descriptor, notify=b"landed").wait(LIMIT_S)
    message, there = other.answer()
    assert message.data == b"landed"
    np.testing.assert_array_equal(there, memory)
    engine.notify(other.address, b"alone").wait(LIMIT_S)
    assert other("notification_and_bytes")[0].data == b"alone"
    engine.read(region, other.descriptor, 10, notify=b"was read").wait(LIMIT_S)
    assert other("notification_and_bytes")[0].data == b"was read"


def test_scatter_and_signal_reach_two_peers(engine, other, way):
    memory = pattern(BYTES, 1)
    region = engine.register(memory)
    with Process(options(way, "c"), BYTES, salt=3) as third:
        parts = [
            ScatterPart(other.descriptor, 300, src_offset=0, dst_offset=10),
            ScatterPart(third.descriptor, 400, src_offset=300, dst_offset=20),
            ScatterPart(other.descriptor, 100, src_offset=700, dst_offset=500),
        ]
        for ticket in engine.scatter(region, parts, imm=1):
            ticket.wait(LIMIT_S)
        assert (other("count", 1), third("count", 1)) == (2, 1)
        np.testing.assert_array_equal(other("bytes")[10:310], memory[:300])
        np.testing.assert_array_equal(third("bytes")[20:420], memory[300:700])
        np.testing.assert_array_equal(other("bytes")[500:600], memory[700:800])
        group = engine.peer_group([other.address, third.address])
        group.connect()
        for ticket in group.signal(2):
            ticket.wait(LIMIT_S)
        assert (other("count", 2), third("count", 2)) == (1, 1)


def test_nobody_leaves_a_barrier_before_all_came(engine, other, way):
    rounds = 5
    with Process(options(way, "c"), 64, salt=3) as third:
        other.begin("barriers", [engine.address, third.address], 10, rounds)
        third.begin("barriers", [engine.address, other.address], 10, rounds)
        here = engine_peers.Host(engine, 64, 4)
        heard = here.barriers([other.address, third.address], 10, rounds)
        assert heard == [[i, i] for i in range(rounds)]
        assert other.answer() == heard
        assert third.answer() == heard


def test_a_barrier_that_one_misses_ends(engine, other):
    with pytest.raises(braid.Timeout, match="barrier under immediate 6: 0 of 1 signals"):
        engine.barrier([other.address], 6, timeout=0.5)
    engine.expect(6, 1)  # it is not expected any more


def test_a_barrier_that_failed_is_not_held_again_under_its_immediate(engine, other):
    with pytest.raises(braid.Timeout):
        engine.barrier([other.address], 6, timeout=0.5)
    # The other comes late, finds our signal and passes; its own would let us through alone.
    other("barrier", [engine.address], 6)
    with pytest.raises(braid.InvalidArgument, match="under immediate 6 has failed"):
        engine.barrier([other.address], 6)
    with pytest.raises(braid.Timeout):
        engine.barrier([other.address], 7, timeout=0.5)


def test_who_expects_it_already_signals_nobody(engine, other):
    engine.expect(6, 1)
    with pytest.raises(braid.InvalidArgument, match="expected already"):
        engine.barrier([other.address], 6)
    assert other("count", 6) == 0


def test_an_expectation_that_has_ended_cancels_no_other(engine):
    region, target = engine.register(pattern(64, 1)), engine.register(pattern(64, 2))
    first = engine.expect(7, 1)
    engine.write(region, target.descriptor, 10, imm=7).wait(LIMIT_S)
    first.wait(LIMIT_S)
    second = engine.expect(7, 1)
    first.cancel()
    engine.write(region, target.descriptor, 10, imm=7).wait(LIMIT_S)
    second.wait(LIMIT_S)


def test_what_is_discarded_is_not_counted_any_more(engine):
    region, target = engine.register(pattern(64, 1)), engine.register(pattern(64, 2))
    engine.write(region, target.descriptor, 10, imm=7).wait(LIMIT_S)
    ticket = engine.expect(7, 2)
    engine.discard(7)
    with pytest.raises(braid.Cancelled):
        ticket.wait(LIMIT_S)
    assert engine.count(7) == 0


def test_callbacks_hear_once_and_may_begin_more(engine, other):
    region = engine.register(pattern(BYTES, 1))
    ends: queue.Queue = queue.Queue()

    def first(error):
        ends.put(error)
        engine.write(region, other.descriptor, 10, imm=4, callback=ends.put)

    engine.write(region, other.descriptor, 10, imm=4, callback=first)
    assert [ends.get(timeout=LIMIT_S) for _ in range(2)] == [None, None]
    assert other("count", 4) == 2
    assert ends.empty()


def test_an_expectation_sets_its_flag_and_calls(engine):
    region, target = engine.register(pattern(64, 1)), engine.register(pattern(64, 2))
    flag, ends = np.zeros(1, np.uint64), queue.Queue()
    ticket = engine.expect(5, 2, flag, callback=ends.put)
    engine.write(region, target.descriptor, imm=5).wait(LIMIT_S)
    assert (flag[0], ticket.done()) == (0, False)
    engine.write(region, target.descriptor, imm=5).wait(LIMIT_S)
    ticket.wait(LIMIT_S)
    assert (flag[0], ends.get(timeout=LIMIT_S)) == (1, None)


def test_a_watched_word_calls_with_what_happened(engine):
    seen: queue.Queue = queue.Queue()

    def bumped(before, now):
        seen.put((before, now))
        return now < 5

    with engine.watch(bumped) as word:
        assert (word.value, word.address % 8) == (0, 0)
        word.value = 3
        assert seen.get(timeout=LIMIT_S) == (0, 3)
        word.value = 5
        assert seen.get(timeout=LIMIT_S) == (3, 5)
        word.value = 9
        with pytest.raises(queue.Empty):  # it said False
            seen.get(timeout=0.2)
    with pytest.raises(braid.InvalidArgument, match="has ended"):
        _ = word.value


def test_threads_share_an_engine(engine, other):
    memory = pattern(BYTES, 1)
    region = engine.register(memory)
    failed = []

    def run(number):
        try:
            pages = np.arange(number, PAGES, 4)
            for some in np.array_split(pages, 10):
                engine.write_pages(region, other.descriptor, PAGE, some, some, imm=1).wait(LIMIT_S)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failed
    other("expect", 1, PAGES)
    np.testing.assert_array_equal(other("bytes"), memory)
    assert engine.stats()["bytes_written"] == BYTES
    assert any("'b'" in line for line in engine.health())


def first_line(**more):
    """Of the health of an engine whose one NIC is loopback, and the cores of this thread."""
    with braid.Engine(**options("local", "a"), **more) as engine:
        allowed = Path("/proc/thread-self/status").read_text().partition("Cpus_allowed_list:")[2]
        return engine.health()[0], allowed.split()[0]


def test_health_begins_with_where_the_worker_runs():
    line, cores = first_line()
    assert line == f"worker: any of cores {cores}: no NIC and no GPU of it has cores near it"
    line, cores = first_line(cores="off")
    assert line == f"worker: any of cores {cores}: near ones are switched off"


def test_the_worker_of_who_is_bound_is_bound_too():
    found = []

    def run():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # this thread alone
        found.append(first_line())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    [(line, core)] = found
    assert int(core) == min(os.sched_getaffinity(0))
    assert line.startswith(f"worker: any of cores {core}: ")


@pytest.mark.parametrize("seed", range(2))
def test_soak_of_mixed_kinds_and_sizes(engine, other, seed):
    random = np.random.default_rng(seed)
    memory = pattern(BYTES, 1)
    region = engine.register(memory)
    there, counts = pattern(BYTES, 2), 0
    for _ in range(150):
        kind = random.choice(["write", "read", "write_pages", "read_pages", "send"])
        page = int(random.choice([1, 8, 100, 4096]))
        count = int(random.integers(0, 1 + min(40, BYTES // page)))
        mine, theirs = (random.permutation(BYTES // page)[:count] for _ in range(2))
        size, at = int(random.integers(0, BYTES // 2)), random.integers(0, BYTES // 2, 2)
        begin, to = int(at[0]), int(at[1])
        if kind == "write":
            ticket = engine.write(
                region, other.descriptor, size, src_offset=begin, dst_offset=to, imm=1
            )
            there[to : to + size] = memory[begin : begin + size]
            counts += 1
        elif kind == "read":
            ticket = engine.read(region, other.descriptor, size, src_offset=to, dst_offset=begin)
            ticket.wait(LIMIT_S)
            np.testing.assert_array_equal(memory[begin : begin + size], there[to : to + size])
        elif kind == "write_pages":
            ticket = engine.write_pages(region, other.descriptor, page, mine, theirs, imm=1)
            for a, b in zip(mine, theirs, strict=True):
                there[b * page : (b + 1) * page] = memory[a * page : (a + 1) * page]
            counts += count
        elif kind == "read_pages":
            expected = memory.copy()
            for a, b in zip(mine, theirs, strict=True):
                expected[a * page : (a + 1) * page] = there[b * page : (b + 1) * page]
            ticket = engine.read_pages(region, other.descriptor, page, mine, theirs)
            ticket.wait(LIMIT_S)
            np.testing.assert_array_equal(memory, expected)
        else:
            ticket = engine.send(other.address, bytes(size % 65536))
            assert len(other("recv").data) == size % 65536
        ticket.wait(LIMIT_S)
    np.testing.assert_array_equal(other("bytes"), there)
    assert other("count", 1) == counts
