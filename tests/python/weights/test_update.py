"""Versions from trainers to workers: whole on all workers, or on none."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_peers import options

import braid
from braid.weights import Parameter, Receiver, Sender, Shard, boxes

LIMIT_S = 30
SHAPES = {"embed": (24, 8), "layers.0.up": (16, 12), "layers.0.down": (12, 16), "norm": (8,)}
ROWS = {name: [Shard(0)] for name in SHAPES}
COLUMNS = {**ROWS, "layers.0.down": [Shard(1)]}


def whole(name, version, dtype=np.float32):
    shape = SHAPES[name]
    return (np.arange(np.prod(shape)).reshape(shape) + 1000 * version + len(name)).astype(dtype)


def part(name, count, rank, placements):
    ((start, size),) = boxes(SHAPES[name], (count,), (rank,), placements[name])
    return start, tuple(slice(s, s + n) for s, n in zip(start, size, strict=True))


class Job:
    """Senders and receivers, each with an engine, in this process."""

    def __init__(self, senders, receivers, way="local", dtypes=(np.float32, np.float32), **more):
        self.sent, self.got = [], []
        self.engines, self.senders, self.receivers = [], [], []
        sender_options = more.pop("sender", {})
        for rank in range(senders):
            arrays, parameters = self.parts(senders, rank, ROWS, dtypes[0])
            self.sent.append(arrays)
            self.senders.append(
                Sender(self.engine(way, f"t{rank}"), rank, parameters, **sender_options)
            )
        for rank in range(receivers):
            arrays, parameters = self.parts(receivers, rank, COLUMNS, dtypes[1])
            self.got.append(arrays)
            self.receivers.append(Receiver(self.engine(way, f"w{rank}"), rank, parameters, **more))
        self.dtypes = dtypes
        self.join()

    def engine(self, way, name):
        self.engines.append(braid.Engine(**options(way, name)))
        return self.engines[-1]

    def parts(self, count, rank, placements, dtype):
        arrays, parameters = {}, []
        for name, shape in SHAPES.items():
            start, box = part(name, count, rank, placements)
            arrays[name] = np.full(whole(name, 0)[box].shape, -1, dtype)
            parameters.append(Parameter(name, arrays[name], shape, start=start))
        return arrays, parameters

    def join(self):
        self.told = [side.describe() for side in (*self.senders, *self.receivers)]
        for side in (*self.senders, *self.receivers):
            self.table = side.join(self.told)

    def train(self, version):
        for rank, arrays in enumerate(self.sent):
            for name, array in arrays.items():
                box = part(name, len(self.sent), rank, ROWS)[1]
                array[...] = whole(name, version, self.dtypes[0])[box]

    def update(self, version, timeout=LIMIT_S):
        """What each trainer's rank says."""

        def one(sender):
            try:
                sender.update(version, timeout)
            except braid.Error as error:
                return error
            return None

        with ThreadPoolExecutor(len(self.senders)) as threads:
            return list(threads.map(one, self.senders))

    def is_served(self, version):
        return all(
            np.array_equal(
                array,
                whole(name, version, self.dtypes[1])[part(name, len(self.got), rank, COLUMNS)[1]],
            )
            for rank, arrays in enumerate(self.got)
            for name, array in arrays.items()
        )

    def close(self):
        for side in (*self.senders, *self.receivers):
            side.close()
        for engine in self.engines:
            engine.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.mark.parametrize("mode", ["two buffers", "in place"])
@pytest.mark.parametrize(
    ("senders", "receivers", "way"),
    [(4, 2, "local"), (2, 4, "local"), (1, 1, "local"), (4, 2, "tcp")],
)
def test_versions_arrive(way, mode, senders, receivers):
    seen = []
    with Job(
        senders, receivers, way, mode=mode, on_pause=lambda: seen.append("pause"),
        on_resume=seen.append,
    ) as job:  # fmt: skip
        for version in (1, 2, 5):
            job.train(version)
            assert job.update(version) == [None] * senders
            assert job.is_served(version)
            assert {receiver.version for receiver in job.receivers} == {version}
        assert sum(s.bytes_sent for s in job.senders) == 3 * sum(job.table.bytes_sent())
    assert seen.count("pause") == 3 * receivers
    assert seen.count(5) == receivers


def test_a_cast_under_a_watermark():
    with Job(3, 2, dtypes=(np.float64, np.float32), sender={"watermark": 300}) as job:
        job.train(3)
        assert job.update(3) == [None] * 3
        assert job.is_served(3)


def test_a_cast_that_nobody_can_make_is_named():
    with Job(1, 1, dtypes=(np.float64, np.float32), sender={"cast": lambda _n, a, _d: a}) as job:
        job.train(1)
        (error,) = job.update(1)
        assert "the cast made float64, the worker has float32" in str(error)
        assert job.receivers[0].version is None


@pytest.mark.parametrize("mode", ["two buffers", "in place"])
def test_a_corrupted_parameter_is_caught_and_nothing_of_it_is_served(mode):
    with Job(2, 2, mode=mode) as job:
        job.train(1)
        assert job.update(1) == [None, None]
        job.train(2)
        receiver = job.receivers[1]
        compare = receiver._compare

        def spoil(rank, sums):
            piece = receiver._buffers.pieces[0]
            receiver._buffers.arrays[piece.buffer][0] += 1
            compare(rank, sums)

        receiver._compare = spoil
        errors = job.update(2)
        assert all("parameter 'embed'" in str(error) for error in errors)
        assert all("at worker 1: checksum" in str(error) for error in errors)
        until = time.monotonic() + LIMIT_S
        while job.receivers[0].trouble == "" and time.monotonic() < until:
            time.sleep(0.01)
        if mode == "two buffers":
            assert job.is_served(1)
            assert {r.version for r in job.receivers} == {1}
        else:
            assert {r.version for r in job.receivers} == {None}
        receiver._compare = compare
        job.train(3)
        assert job.update(3) == [None, None]  # and on with the next
        assert job.is_served(3)


def test_a_worker_that_is_lost_is_named_and_the_others_keep_the_old_version():
    with Job(2, 2) as job:
        job.train(1)
        assert job.update(1) == [None, None]
        job.receivers[1].close()
        job.engines[3].close()
        job.train(2)
        errors = job.update(2, timeout=3)
        assert any("worker 1" in str(error) or "workers [1]" in str(error) for error in errors)
        assert all(error is not None for error in errors)
        assert job.receivers[0].version == 1


def test_a_trainer_that_does_not_come_is_named():
    with Job(2, 1) as job:
        job.train(1)
        with pytest.raises(braid.Timeout, match="trainer 0 has waited in vain for 'have' of work"):
            job.senders[0].update(1, timeout=1)
        assert job.receivers[0].version is None
        until = time.monotonic() + LIMIT_S
        while not job.receivers[0].trouble and time.monotonic() < until:
            time.sleep(0.01)
        with pytest.raises(braid.InvalidArgument, match="version 1 after 1: each is sent once"):
            job.senders[0].update(1)
        job.senders[1]._last = 1
        assert job.update(2) == [None, None]


def test_a_worker_that_was_replaced_joins_with_all():
    with Job(2, 2) as job:
        job.train(1)
        assert job.update(1) == [None, None]
        job.receivers[1].close()
        job.engines[3].close()
        arrays, parameters = job.parts(2, 1, COLUMNS, np.float32)
        job.got[1] = arrays
        job.receivers[1] = Receiver(job.engine("local", "heir"), 1, parameters)
        job.receivers[0].renew()
        job.join()
        job.train(2)
        assert job.update(2) == [None, None]
        assert job.is_served(2)
        assert [r.version for r in job.receivers] == [2, 2]


def test_holdings_that_lack_or_differ_are_refused():
    with Job(1, 2) as job:
        sender = job.senders[0]
        for told, words in [
            (job.told[:2] + job.told[1:2], "worker 0 is told twice"),
            ([job.told[0], job.told[2]], r"asked for workers 0 to 1, found \[1\]"),
            ([b"{", *job.told[1:]], "no holdings"),
            ([job.told[0].replace(b'"version": 1', b'"version": 2')], "found 2"),
            ([job.told[0].replace(b'"norm"', b'"other"'), *job.told[1:]],
             "parameter 'norm' of worker 0: no trainer has it"),
        ]:  # fmt: skip
            with pytest.raises(braid.InvalidArgument, match=words):
                sender.join(told)
        job.join()
        job.train(1)
        assert job.update(1) == [None]


def test_a_word_of_the_next_version_may_overtake_the_leaders_of_this_one():
    """Workers are ready for version 2 before trainer 1 has heard that version 1 is served."""
    with Job(2, 2) as job:
        job.train(1)
        late = job.senders[1]
        letter, held = late._letter, []

        def commit_comes_late(timeout):
            found = letter(timeout)
            if found is not None and found[0]["kind"] == "commit" and not held:
                held.append(found)
                # 'ready' of version 2, if that has not come before 'commit' by itself.
                found = letter(min(timeout, 1.0))
                late._letter = lambda _: (setattr(late, "_letter", letter), held[0])[1]
            return found

        late._letter = commit_comes_late
        with ThreadPoolExecutor(2) as threads:
            done = [
                threads.submit(lambda s=s: [s.update(1, LIMIT_S), s.update(2, LIMIT_S)])
                for s in job.senders
            ]
            for one in done:
                one.result()
        assert held
        assert {receiver.version for receiver in job.receivers} == {2}


def test_letters_of_another_plan_are_not_listened_to():
    with Job(1, 1) as job, braid.Engine(**options("local", "odd")) as odd:
        from braid import letters

        for head in ({"kind": "go", "version": 9, "plan": "0"}, {"kind": "abort"}):
            for frame in letters.frames(head):
                odd.send(job.engines[1].address, frame).wait(LIMIT_S)
        odd.send(job.engines[1].address, b"nonsense").wait(LIMIT_S)
        job.train(1)
        assert job.update(1) == [None]
        assert job.is_served(1)
    assert threading.active_count() < 50
