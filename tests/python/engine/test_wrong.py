"""What is refused, by which class, and in which words: peer, region, asked, found."""

import asyncio
import gc
import multiprocessing as mp
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from engine_peers import options, pattern

import braid

BYTES = 1000


@pytest.fixture
def engine():
    with braid.Engine(**options("local", "a")) as made:
        yield made


@pytest.fixture
def other():
    with braid.Engine(**options("local", "b")) as made:
        yield made


@pytest.fixture
def ends(engine, other):
    """A region here, and a descriptor of one there."""
    return engine.register(pattern(BYTES, 1)), other.register(pattern(2 * BYTES, 2)).descriptor


def test_what_is_no_name_of_this_job_is_told_before_it_is_used(engine, other, ends):
    _, region = ends
    engine.check()
    engine.check(other.address, region)
    for name in (other.address, region):
        for data in (b"", b"none", name.data[:-1], name.data[:-1] + bytes([name.data[-1] ^ 1])):
            with pytest.raises(braid.InvalidArgument, match=r"engine address|region descriptor"):
                engine.check(region, type(name)(data))
    with braid.Engine(**{**options("local", "c"), "token": "another"}) as far:
        for name in (far.address, far.register(pattern(BYTES, 1)).descriptor):
            with pytest.raises(braid.InvalidArgument, match="another job"):
                engine.check(name)
    with pytest.raises(braid.InvalidArgument, match="asked for a Peer"):
        engine.check(5)


RANGES = [
    ({"nbytes": 1000, "dst_offset": 1001}, "1000 bytes at offset 1001 of region 1 of 'b'"),
    ({"nbytes": 1001}, "1001 bytes at offset 0 of our region"),
    ({"nbytes": 2**33}, "8589934592 bytes"),
    ({"nbytes": -1}, "write: nbytes: asked for 0 to"),
    ({"nbytes": 1.5}, r"write: nbytes: asked for a whole number, found 1.5 \(float\)"),
    ({"src_offset": -8}, "write: src_offset: .* found -8"),
    ({"dst_offset": 2**64}, "write: dst_offset: .* found 18446744073709551616"),
    ({"src_offset": 1001}, "at offset 1001 of our region"),
    ({"imm": -1}, "write: imm: asked for 0 to 4294967295, found -1"),
    ({"imm": 2**32}, "write: imm: .* found 4294967296"),
    ({"notify": "text"}, "write: notify: asked for bytes, found str"),
    ({"notify": bytes(65537)}, "a notification of 65537 bytes, 65536 are the limit"),
    ({"timeout": -1}, "write: timeout: asked for 0 s or more, found -1"),
    ({"timeout": float("nan")}, "write: timeout: asked for seconds, found nan"),
]


@pytest.mark.parametrize(("wrong", "words"), RANGES)
def test_ranges_are_refused(engine, ends, wrong, words):
    with pytest.raises(braid.InvalidArgument, match=words):
        engine.write(*ends, **wrong)
    engine.write(*ends).wait(60)  # and nothing else is the matter


@pytest.mark.parametrize("seconds", [np.int64(60), np.float32(60.5), np.float64(60)])
def test_a_time_may_be_one_of_an_array_s_numbers(engine, ends, seconds):
    engine.write(*ends, timeout=seconds).wait(seconds)
    with pytest.raises(braid.InvalidArgument, match="asked for 0 s or more, found -"):
        engine.write(*ends, timeout=-seconds)


PAGES = [
    (([0, 1], [0]), {}, "2 pages of the source, 1 of the target"),
    (([0, -1], [0, 1]), {}, "src_ids: asked for whole numbers from 0 on, found -1 at place 1"),
    (([0, 1], [0.5, 1]), {}, "dst_ids: asked for whole numbers from 0 on, found 0.5 at place 0"),
    (([float("nan")], [0]), {}, "found nan at place 0"),
    (([[0, 1]], [0, 1]), {}, r"src_ids: asked for one axis, found the shape \(1, 2\)"),
    ((["a"], [0]), {}, "src_ids: asked for page numbers, found elements of <U1"),
    (([2**64], [0]), {}, "src_ids: asked for page numbers"),
    (([True], [0]), {}, "found elements of bool"),
    (([0], [20]), {}, "page 0 of the list, number 20, lies outside of region 1 of 'b'"),
    (([2**63], [0]), {}, r"page 0 of the list"),
    (([0, 1], [0, 1]), {"dst_stride": 99}, r"region 1 of 'b': .* 99 \(target\)"),
    (([0, 1], [0, 1]), {"src_stride": 0}, "src_stride: pages of 100 bytes overlap with 0"),
]


@pytest.mark.parametrize(("ids", "others", "words"), PAGES)
def test_page_lists_are_refused(engine, ends, ids, others, words):
    with pytest.raises(braid.InvalidArgument, match=words):
        engine.write_pages(*ends, 100, *ids, **others)


PLANES = [
    ({"src": 2, "dst": 3}, {}, "write_pages: asked for as many planes in each list, found 2 in "
                               "src, 3 in dst, 1 in src_offset, 1 in dst_offset"),
    ({}, {"src_offset": [0, 0], "dst_offset": [0, 0, 0]}, "2 in src_offset, 3 in dst_offset"),
    ({"src": 0, "dst": 2}, {}, "found 0 in src, 2 in dst"),
    ({"src": 3}, {"dst_offset": [0, 5, 1901]}, "write_pages: plane 2: page 0 of the list, number "
                                               "0, lies outside of region 1 of 'b'"),
    ({"dst": 3}, {"src_offset": [0, 951, 0]}, "plane 1: page 0 of the list, .* of our region"),
    ({"src": 2}, {"dst_offset": [0, -1]}, "dst_offset: asked for whole numbers from 0 on, found"),
    ({"src": 2}, {"dst_offset": ["a"]}, "dst_offset: asked for offsets, found elements of"),
    ({"src": 2}, {"dst_offset": 0.5}, "dst_offset: asked for a whole number, found 0.5"),
    ({"src": 193}, {}, "asked for 1 to 192 planes, found 193"),
]  # fmt: skip


@pytest.mark.parametrize(("lists", "others", "words"), PLANES)
def test_planes_are_refused(engine, ends, lists, others, words):
    src, dst = ends
    given = {"src": src, "dst": dst} | {
        name: [{"src": src, "dst": dst}[name]] * count for name, count in lists.items()
    }
    with pytest.raises(braid.InvalidArgument, match=words):
        engine.write_pages(**given, page_bytes=100, src_ids=[0], dst_ids=[0], **others)
    engine.write_pages([src, src], [dst, dst], 100, [0], [0]).wait(60)  # nothing else is the matter


def test_a_plane_that_is_no_region_is_named(engine, ends):
    src, dst = ends
    with pytest.raises(
        braid.InvalidArgument, match=r"src: plane 1: asked for a Region .* found int"
    ):
        engine.write_pages([src, 7], dst, 100, [0], [0])
    with pytest.raises(braid.InvalidArgument, match="dst: plane 2: asked for a Descriptor"):
        engine.write_pages(src, [dst, dst, None], 100, [0], [0])
    with pytest.raises(braid.InvalidArgument, match="src: asked for a Region of this engine"):
        engine.write_pages(7, dst, 100, [0], [0])
    gone = engine.register(np.zeros(1000, np.uint8))
    gone.unregister()
    with pytest.raises(braid.InvalidArgument, match=r"src: plane 1: region .* is not registered"):
        engine.write_pages([src, gone], dst, 100, [0], [0])


def test_a_plane_whose_region_is_gone_there(engine, other, ends):
    src, dst = ends
    lost = other.register(np.zeros(2000, np.uint8))
    number = lost.id
    planes = [dst, lost.descriptor, dst]
    engine.write_pages(src, planes, 100, [0], [0], imm=4).wait(60)
    lost.unregister()
    with pytest.raises(braid.InvalidArgument, match=f"region {number} of 'b' was unregistered"):
        engine.write_pages(src, planes, 100, [0], [0], imm=4).wait(60)
    assert other.count(4) == 3


def test_no_pages_and_no_bytes_are_transfers(engine, other, ends):
    engine.write_pages(*ends, 100, [], [], imm=1).wait(60)
    assert other.count(1) == 0
    engine.write(*ends, 0, imm=1).wait(60)
    assert other.count(1) == 1
    engine.read(*ends, 0).wait(60)


def test_descriptors_that_are_cut_or_altered_are_refused(engine, ends):
    region, good = ends
    for size in range(len(good.data)):
        with pytest.raises(braid.InvalidArgument):
            engine.write(region, good.data[:size])
    random = np.random.default_rng(1)
    for at in random.integers(0, len(good.data), 100):
        altered = bytearray(good.data)
        altered[at] ^= 1 << random.integers(8)
        with pytest.raises(braid.InvalidArgument):
            engine.write(region, bytes(altered))
    with pytest.raises(braid.InvalidArgument, match="dst: asked for a Descriptor or its bytes"):
        engine.write(region, 7)
    with pytest.raises(braid.InvalidArgument):
        engine.write(region, engine.address)
    with pytest.raises(braid.InvalidArgument):
        engine.send(good.data, b"")


def test_a_descriptor_of_another_job_is_refused(ends):
    _, descriptor = ends
    with braid.Engine(**options("local", "stranger", token="another token")) as stranger:
        region = stranger.register(pattern(BYTES, 3))
        with pytest.raises(braid.InvalidArgument, match=r"region 1 of 'b'.*another job"):
            stranger.write(region, descriptor)


def test_names_are_pickled(engine, ends):
    region, descriptor = ends
    for thing in (engine.address, descriptor):
        assert pickle.loads(pickle.dumps(thing)) == thing
    assert repr(descriptor) == f"Descriptor({len(descriptor.data)} bytes)"
    assert (region.nbytes, region.device, region.id) == (BYTES, None, 1)


@pytest.mark.parametrize(
    ("buffer", "error", "words"),
    [
        (b"read only", braid.InvalidArgument, "asked for writable memory"),
        (np.zeros((4, 4))[:, ::2], braid.InvalidArgument, "contiguous"),
        (np.zeros(0), braid.InvalidArgument, "a region of 0 bytes"),
        ("text", braid.InvalidArgument, "asked for an array"),
        (None, braid.InvalidArgument, "asked for an array"),
        ((4096, 10), braid.InvalidArgument, "10 bytes at 0x1000: no memory"),
        ((1,), braid.InvalidArgument, r"asked for \(pointer, nbytes\[, device\]\)"),
        ((-1, 10), braid.InvalidArgument, "register: pointer"),
        ((4096, 0), braid.InvalidArgument, "a region of 0 bytes"),
        ((4096, 10, 0), braid.Unsupported, "10 bytes of GPU 0: this engine is of no GPU"),
    ],
)
def test_memory_that_cannot_be_registered(engine, buffer, error, words):
    with pytest.raises(error, match=words):
        engine.register(buffer)


def test_memory_is_registered_by_its_address(engine):
    source, target = pattern(BYTES, 1), pattern(BYTES, 2)
    here = engine.register((source.ctypes.data, source.nbytes))
    with engine.register((target.ctypes.data, target.nbytes, None)) as there:
        engine.write(here, there.descriptor).wait(60)
    np.testing.assert_array_equal(source, target)


def test_torch_tensors_are_registered(engine):
    torch = pytest.importorskip("torch")
    source, target = torch.arange(100.0), torch.zeros(100)
    here, there = engine.register(source), engine.register(target)
    ids = torch.arange(4)
    engine.write_pages(here, there.descriptor, 100, ids, ids.flip(0)).wait(60)
    assert torch.equal(target.view(4, 25), source.view(4, 25).flip(0))


def test_a_region_keeps_its_memory_until_it_is_unregistered(engine):
    class Bytes(np.ndarray):
        """NumPy's own arrays take no weak references in all versions."""

    memory = np.zeros(BYTES, np.uint8).view(Bytes)
    kept = weakref.ref(memory)
    region = engine.register(memory)
    del memory
    gc.collect()
    assert kept() is not None
    region.unregister()
    gc.collect()
    assert kept() is None
    with pytest.raises(braid.InvalidArgument, match=f"region {region.id} .* not registered"):
        engine.write(region, region.descriptor)
    with pytest.raises(braid.InvalidArgument, match="not registered"):
        region.unregister()


def test_regions_of_another_engine_are_refused(engine, other, ends):
    theirs = other.register(pattern(BYTES, 3))
    with pytest.raises(braid.InvalidArgument, match="not registered with this engine"):
        engine.write(theirs, ends[1])
    with pytest.raises(braid.InvalidArgument, match="asked for a Region of this engine, found int"):
        engine.read(3, ends[1])


def test_an_immediate_is_expected_once(engine):
    engine.expect(3, 4)
    with pytest.raises(braid.InvalidArgument, match=r"immediate 3.*4 are expected already"):
        engine.expect(3, 1)
    engine.forget(3)
    engine.expect(3, 1)


def test_flags_that_cannot_be_set_are_refused(engine):
    with pytest.raises(braid.InvalidArgument, match="asked for 8 aligned bytes, found 16 bytes"):
        engine.expect(1, 1, np.zeros(2, np.uint64))
    unaligned = np.zeros(16, np.uint8)[1:9]
    with pytest.raises(braid.InvalidArgument, match="asked for 8 aligned bytes"):
        engine.expect(1, 1, unaligned)


class OnGpu:
    """Says that it is memory of a GPU, as a tensor there does."""

    def __init__(self):
        self.array = np.zeros(1, np.uint64)

    def __dlpack_device__(self):
        return (2, 3)

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


def test_a_flag_of_another_gpu_is_refused(engine):
    flag = OnGpu()
    with pytest.raises(
        braid.InvalidArgument, match=r"flag: memory of GPU 3: this engine is of no GPU"
    ):
        engine.expect(1, 1, flag)
    engine.signal([engine.address], 1)
    engine.expect(1, 1).wait(60)  # it was not expected
    assert flag.array[0] == 0


def test_a_wait_that_ends_early_ends_nothing(engine):
    ticket = engine.expect(1, 1)
    began = time.monotonic()
    with pytest.raises(braid.Timeout, match="1 counts under immediate 1: not done"):
        ticket.wait(0.1)
    assert 0.1 <= time.monotonic() - began < 10
    assert not ticket.done()
    ticket.cancel()
    with pytest.raises(braid.Cancelled, match="nobody expects it"):
        ticket.wait(60)


def test_too_many_transfers_are_refused(ends):
    _, descriptor = ends
    with braid.Engine(**options("local", "small", most_transfers=1)) as small:
        region = small.register(pattern(BYTES, 1))

        def flood():
            for _ in range(10_000):
                small.write(region, descriptor)

        with pytest.raises(braid.Exhausted, match=r"write of 1000 bytes to 'b'.*1 transfers"):
            flood()


def test_a_closed_engine_refuses_and_its_work_is_cancelled(engine, ends):
    ticket = engine.expect(1, 1)
    failures = []

    def wait():
        try:
            engine.recv()
        except braid.Cancelled as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    engine.close()
    engine.close()
    thread.join(60)
    assert "the engine 'a' was closed" in str(failures[0])
    with pytest.raises(braid.Cancelled, match="'a' was closed"):
        ticket.wait(60)
    for call in (lambda: engine.write(*ends), lambda: engine.count(1), lambda: engine.address):
        with pytest.raises(braid.InvalidArgument, match="it is closed"):
            call()
    assert repr(engine) == "Engine('a', closed)"


def test_a_callback_may_not_close_its_engine(engine, ends):
    raised, done = [], threading.Event()

    def close(_):
        try:
            engine.close()
        except braid.InvalidArgument as error:
            raised.append(str(error))
        done.set()

    engine.write(*ends, callback=close)
    assert done.wait(60)
    assert "a callback may not close it" in raised[0]


def test_who_closes_it_again_waits_until_it_has_ended(engine):
    is_called, may_end = threading.Event(), threading.Event()

    def linger(_):
        is_called.set()
        may_end.wait(60)

    engine.expect(1, 1, callback=linger)
    engine.signal([engine.address], 1)[0].wait(60)
    assert is_called.wait(60)
    first, second = (threading.Thread(target=engine.close) for _ in range(2))
    first.start()
    while not engine.closed:
        time.sleep(0.001)
    second.start()
    second.join(0.3)
    assert second.is_alive(), "it returned while peers could still write"
    may_end.set()
    second.join(60)
    assert not second.is_alive()
    first.join(60)


def test_all_callbacks_are_called_before_it_is_closed(engine, ends):
    called = []

    def call(error):
        time.sleep(0.001)
        called.append(error)

    tickets = [engine.write(*ends, callback=call) for _ in range(200)]
    tickets.append(engine.expect(1, 1, callback=call))
    engine.close()
    assert len(called) == len(tickets)
    assert all(ticket.done() for ticket in tickets)
    assert all(error is None or isinstance(error, braid.Cancelled) for error in called)


def test_callbacks_hear_what_went_wrong(engine, other):
    region, target = engine.register(pattern(BYTES, 1)), other.register(pattern(BYTES, 2))
    target.unregister()
    ends: queue.Queue = queue.Queue()
    ticket = engine.write(region, target.descriptor, callback=ends.put)
    error = ends.get(timeout=60)
    assert isinstance(error, braid.InvalidArgument)
    assert "unregistered" in str(error)
    assert str(ticket.error()) == str(error)


def test_an_engine_may_be_let_go_of_anywhere():
    done = threading.Event()

    def make():
        engine = braid.Engine(**options("local", "short"))
        region = engine.register(pattern(BYTES, 1))
        # The callback has the last reference: the engine ends on its own thread.
        engine.write(region, region.descriptor, callback=lambda _, __=[engine]: done.set())

    for _ in range(5):
        done.clear()
        make()
        assert done.wait(60)
        gc.collect()


def in_fork(engine, ticket, pipe):
    for call in (lambda: engine.count(1), ticket.wait):
        try:
            call()
        except braid.InvalidArgument as error:
            pipe.send(str(error))
    engine.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_has_no_engine(engine):
    fork = mp.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=in_fork, args=(engine, engine.expect(1, 1), theirs))
    process.start()
    for _ in range(2):
        assert ours.poll(60)
        assert "found in its fork" in ours.recv()
    process.join(60)
    assert process.exitcode == 0


FORKS = """
import os, sys, braid
engine = braid.Engine(nics="none", token="t", hosts="127.0.0.1")
word = engine.watch(lambda before, now: True)
memory = bytearray(100)
region = engine.register(memory)
if os.fork() == 0:
    sys.exit(3)  # all that Python does at an end
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_fork_ends_without_its_parents_engine():
    done = subprocess.run([sys.executable, "-c", FORKS], timeout=60, check=False)
    assert done.returncode == 3


ENDS = """
import contextlib, sys, threading, time
import numpy as np
import braid
engine = braid.Engine(nics="none", token="t", hosts="127.0.0.1")
comm = braid.init()
ticket = engine.expect(1, 1)

def write_on():
    region = engine.register(bytearray(1 << 20))
    while True:
        engine.write(region, region.descriptor).wait()

def reduce_on():
    elements = np.ones(1 << 20, np.float32)
    while True:
        comm.all_reduce(elements)

def quietly():  # Python itself aborts where a thread prints while the program ends
    with contextlib.suppress(braid.Error):
        eval(sys.argv[1])()

for _ in range(4):
    threading.Thread(target=quietly, daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize("wait", ["ticket.wait", "write_on", "reduce_on"])
def test_a_program_ends_well_though_threads_of_it_wait(wait):
    """They are of no account at its end, and must not end it by a signal."""
    command = [sys.executable, "-c", ENDS, wait]
    for _ in range(3):  # what went wrong did so in two of three
        done = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"nics": "fast"}, braid.InvalidArgument, "asked for 'auto', 'none' or a list"),
        ({"cores": "0-3"}, braid.InvalidArgument, "cores: asked for 'auto' or 'off', found '0-3'"),
        ({"cores": 3}, braid.InvalidArgument, r"cores: asked for a str, found 3 \(int\)"),
        ({"nics": [":1"]}, braid.InvalidArgument, "NIC ':1': asked for PROVIDER"),
        ({"nics": ["nonesuch:1"]}, braid.Unavailable, "nonesuch"),
        ({"nics": ["tcp:192.0.2.1"]}, braid.Unavailable, "192.0.2.1"),
        ({"hosts": "192.0.2.1"}, braid.Unavailable, "192.0.2.1"),
        ({"hosts": []}, braid.InvalidArgument, "hosts: asked for one at least"),
        ({"hosts": [5]}, braid.InvalidArgument, r"hosts: asked for a str, found 5 \(int\)"),
        ({"name": None}, braid.InvalidArgument, r"name: asked for a str, found None"),
        ({"token": b"secret"}, braid.InvalidArgument, "token: asked for a str, found bytes$"),
        ({"token": "\udc80"}, braid.InvalidArgument, "token: asked for text, found half a pair"),
        ({"name": "a\udc80"}, braid.InvalidArgument, "name: .* surrogates at place 1$"),
        ({"local": 1}, braid.InvalidArgument, r"local: asked for a bool, found 1 \(int\)"),
        ({"port": 70000}, braid.InvalidArgument, "port: asked for 0 to 65535"),
        ({"lease": 0}, braid.InvalidArgument, "lease: asked for more than 0 s"),
        ({"timeout": 0}, braid.InvalidArgument, "timeout: asked for more than 0 s"),
        ({"device": -1}, braid.InvalidArgument, "device: asked for 0 to"),
        ({"device": 999}, (braid.Unavailable, braid.DriverError), "engine 'wrong': device 999: "),
        ({"hosts": "0.0.0.0", "token": ""}, braid.Unavailable, "BRAID_JOB_TOKEN"),
        ({"name": "n" * 257}, braid.InvalidArgument, "a name or host_id of 257 bytes"),
        ({"lease": 0.2}, braid.InvalidArgument, "a lease of 200 ms: asked for 1000 at least"),
    ],
)
def test_settings_that_cannot_be(wrong, error, words):
    with pytest.raises(error, match=words):
        braid.Engine(**{**options("local", "wrong"), **wrong})


def test_a_callback_that_cannot_be_called_is_refused_at_the_call(engine, ends):
    ticket = engine.expect(1, 1)
    for call in (
        lambda: engine.write(*ends, callback=5),
        lambda: engine.read(*ends, callback=5),
        lambda: engine.send(engine.address, b"", callback=5),
        lambda: engine.expect(2, 1, callback=5),
        lambda: ticket.then(5),
        lambda: engine.watch(5),
    ):
        with pytest.raises(braid.InvalidArgument, match="asked for what can be called, found int"):
            call()


def test_times_that_are_none_are_refused(engine, ends):
    for wrong in (float("nan"), "1", -1, True):
        for call in (engine.wait_closed, engine.recv, engine.expect(9, 0).wait):
            with pytest.raises(braid.InvalidArgument, match="timeout: asked for"):
                call(wrong)
    engine.write(*ends, timeout=10**400).wait(10**400)
    for endless in (float("inf"), 10**400):
        engine.barrier([engine.address], 1, timeout=endless)
        for take, say in ((engine.recv_async, engine.send),
                          (engine.take_notification_async, engine.notify)):  # fmt: skip
            say(engine.address, b"words")
            assert asyncio.run(take(endless)).data == b"words"


def test_what_is_no_number_is_no_word(engine):
    with engine.watch(lambda *_: None) as watch:
        for wrong in (-1, 2**64, 1.5, None):
            with pytest.raises(braid.InvalidArgument, match="watch: value: asked for"):
                watch.value = wrong
        watch.value = 2**64 - 1
        assert watch.value == 2**64 - 1


def test_a_barrier_that_was_refused_may_be_held(engine, other):
    """Nobody was signalled: its immediate is as good as before."""
    peer = other.address
    for peers, timeout in (([peer], -1), ([peer], "1"), ([peer, type(peer)(b"none")], 1)):
        with pytest.raises(braid.InvalidArgument, match=r"barrier: timeout|engine address"):
            engine.barrier(peers, 6, timeout=timeout)
    done = threading.Thread(target=other.barrier, args=([engine.address], 6))
    done.start()
    engine.barrier([peer], 6)
    done.join(60)


def test_a_barrier_is_cancelled_by_who_closes_the_engine(engine, other):
    closer = threading.Timer(0.2, engine.close)
    closer.start()
    with pytest.raises(braid.Cancelled, match="the engine 'a' was closed"):
        engine.barrier([other.address], 6, timeout=30)
    closer.join(60)


def test_two_engines_cannot_have_one_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(braid.Exhausted, match=str(taken.getsockname()[1])):
            braid.Engine(**options("local", "second", port=taken.getsockname()[1]))


def test_nics_and_hosts_are_chosen():
    with braid.Engine("chosen") as engine:  # no token: this host alone
        region = engine.register(pattern(BYTES, 1))
        target = pattern(BYTES, 2)
        engine.write(region, engine.register(target).descriptor).wait(60)
        np.testing.assert_array_equal(target, pattern(BYTES, 1))
