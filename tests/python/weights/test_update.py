"""Versions from trainers to workers: whole on all workers, or on none."""

import json
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from engine_peers import options

import braid
from braid.weights import Parameter, Receiver, Sender, Shard, boxes, dialogue, sums
from braid.weights import receiver as receiver_module
from braid.weights.holdings import as_bytes
from braid.weights.stream import StreamReceiver, StreamSender
from braid.weights.sums import Landed

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
        assert "the cast made float64 of (24, 8), the worker has float32" in str(error)
        assert job.receivers[0].version is None


class Spoiled:
    """A route's bytes at a worker that are changed between their landing and their checksum."""

    def __init__(self, text, spoil):
        self._text, self._spoil = text, spoil
        self.nbytes, self.can_sum = text.nbytes, text.can_sum

    def sum(self, begin, nbytes):
        number, within = divmod(begin, self._text._run)
        first = int(self._text._begins[number]) + within
        self._spoil(self._text._data[first : first + min(nbytes, self._text._run)])
        return self._text.sum(begin, nbytes)


def spoil_first_route(receiver, spoil):
    routes = receiver._joined.routes[0]
    whole_route = routes[0]
    routes[0] = whole_route[0], Spoiled(whole_route[1], spoil)

    def heal():
        routes[0] = whole_route

    return heal


@pytest.mark.parametrize("mode", ["two buffers", "in place"])
def test_a_corrupted_parameter_is_caught_and_nothing_of_it_is_served(mode):
    with Job(2, 2, mode=mode) as job:
        job.train(1)
        assert job.update(1) == [None, None]
        job.train(2)

        def flip(data):
            data[0] ^= 1

        heal = spoil_first_route(job.receivers[0], flip)
        errors = job.update(2)
        assert all("parameter 'embed'" in str(error) for error in errors)
        assert all("at worker 0: of " in str(error) for error in errors)
        until = time.monotonic() + LIMIT_S
        while job.receivers[1].trouble == "" and time.monotonic() < until:
            time.sleep(0.01)
        if mode == "two buffers":
            assert job.is_served(1)
            assert {r.version for r in job.receivers} == {1}
        else:
            assert {r.version for r in job.receivers} == {None}
        heal()
        job.train(3)
        assert job.update(3) == [None, None]  # and on with the next
        assert job.is_served(3)


def flipped(data, _old):
    data[17] ^= 8


def swapped(data, _old):
    data[:32], data[32:64] = data[32:64].copy(), data[:32].copy()


def stale(data, old):
    half = len(data) // 2
    data[half:] = old[half : len(data)]


def torn(data, old):
    data[-4:] = old[len(data) - 4 : len(data)]


# What a checksum that is too weak for it looks at: nothing, how often each byte is there, the first
# half, all but the end.
WEAKER = {
    flipped: lambda _: 0,
    swapped: lambda text: int(text.sum(dtype=np.uint64)),
    stale: lambda text: zlib.crc32(text[: len(text) // 2].tobytes()),
    torn: lambda text: zlib.crc32(text[:-4].tobytes()),
}


class Weak:
    """In the place of the compiled module, for checksums."""

    def __init__(self, of_text):
        self._of_text = of_text

    def crc64_of_runs(self, data, begins, run_bytes, before):
        parts = [data[int(begin) : int(begin) + run_bytes] for begin in begins]
        return before + self._of_text(np.concatenate(parts))


@pytest.mark.parametrize("is_weak", [False, True], ids=["ours", "too weak"])
@pytest.mark.parametrize("how", WEAKER, ids=lambda how: how.__name__)
def test_what_is_caught(how, is_weak, monkeypatch):
    """Each with a checksum that does not see it, which says that it has been done."""
    if is_weak:
        monkeypatch.setattr(sums, "_braid", Weak(WEAKER[how]))
    with Job(1, 1) as job:
        job.train(1)
        assert job.update(1) == [None]
        piece = job.receivers[0]._joined.routes[0][0][0].target_piece
        buffer = job.receivers[0]._buffers.pieces[piece].buffer
        old = as_bytes(job.receivers[0]._buffers.arrays[buffer]).copy()
        job.train(2)
        spoil_first_route(job.receivers[0], lambda data: how(data, old))
        (error,) = job.update(2)
        if is_weak:
            assert error is None
            assert not job.is_served(2)
        else:
            assert "checksum is" in str(error)
            assert job.is_served(1)


@pytest.mark.parametrize(("way", "part"), [("local", 4), ("local", 36), ("tcp", 100)])
def test_routes_go_in_parts_of_any_size(way, part):
    with Job(3, 2, way, sender={"part": part}) as job:
        job.train(1)
        assert job.update(1) == [None] * 3
        assert job.is_served(1)
        assert sum(s.bytes_sent for s in job.senders) == sum(job.table.bytes_sent())


def test_a_part_that_never_comes_is_waited_for_in_vain():
    with Job(1, 1, patience=1) as job:
        job.train(1)
        sender = job.senders[0]
        left_out = sender._routes.pop()
        (error,) = job.update(1, timeout=5)
        assert "worker 0 has waited in vain for parts of trainers [0]" in str(error)
        sender._routes.append(left_out)
        assert job.update(2) == [None]


def test_a_part_that_comes_twice_is_no_part():
    with Job(1, 1) as job:
        job.train(1)
        sender = job.senders[0]
        sender._routes.insert(1, sender._routes[0])
        (error,) = job.update(1, timeout=5)
        assert "has sent a part of its route 0, which there is not, or which is whole" in str(error)
        del sender._routes[1]
        job.train(2)
        assert job.update(2) == [None]
        assert job.is_served(2)


def test_checksums_of_another_kind_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(dialogue, "NAME", "crc32")
    with Job(1, 1) as job:
        (error,) = job.update(1, timeout=5)
        assert "worker 0: asked for checksums 'crc32', knows 'crc64nvme'" in str(error)


def test_without_checksums_nothing_is_summed(monkeypatch):
    monkeypatch.setattr(sums, "_braid", None)
    with Job(2, 2, sender={"checks": False}) as job:
        job.train(1)
        assert job.update(1) == [None] * 2
        assert job.is_served(1)


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
        # It has heard so, and does not wait for all of its own patience.
        assert job.receivers[0].trouble.startswith("version 1: trainer 0 has waited in vain")
        with pytest.raises(braid.InvalidArgument, match="version 1 after 1: each is sent once"):
            job.senders[0].update(1)
        job.senders[1]._last = 1
        assert job.update(2) == [None, None]


def test_times_that_are_none_are_refused():
    """No clock would ever be past them."""
    for wrong in (float("nan"), "1", None, -1):
        with Job(1, 1) as job:
            for call in (partial(job.senders[0].update, 1), partial(job.receivers[0].wait, 1)):
                with pytest.raises(braid.InvalidArgument, match="timeout: asked for"):
                    call(timeout=wrong)
            with pytest.raises(braid.InvalidArgument, match="patience: timeout: asked for"):
                Receiver(job.engines[0], 0, [], patience=wrong)


@pytest.mark.parametrize("rank", [1.5, -1, "0", None])
def test_ranks_that_are_none_are_refused(rank):
    with Job(1, 1) as job:
        for kind, side in ((Sender, "trainer"), (Receiver, "worker")):
            with pytest.raises(braid.InvalidArgument, match=f"{side}: rank: asked for"):
                kind(job.engines[0], rank, [])


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
            (None, "trainer 0: join: asked for several, found None"),
            ([b"{", *job.told[1:]], "no holdings"),
            ([b"[" * 100_000, *job.told[1:]], "no holdings"),
            ([job.told[0].replace(b'"rank": 0', b'"rank": Infinity')], "no holdings"),
            ([job.told[0].replace(b"[24, 8]", b"[24, Infinity]", 1)], "no piece"),
            ([job.told[0].replace(b'"version": 2', b'"version": 1')], "found 1"),
            ([job.told[0].replace(b'"norm"', b'"other"'), *job.told[1:]],
             "parameter 'norm' of worker 0: no trainer has it"),
        ]:  # fmt: skip
            with pytest.raises(braid.InvalidArgument, match=words):
                sender.join(told)
        job.join()
        job.train(1)
        assert job.update(1) == [None]


def without(told, name):
    """The same holdings but for a parameter."""
    holdings = json.loads(told)
    holdings["pieces"] = [piece for piece in holdings["pieces"] if piece[0] != name]
    return json.dumps(holdings).encode()


def test_a_rank_that_refuses_what_it_is_told_goes_on_by_its_old_plan():
    """On each side: a parameter that one of them lacks, an unknown dtype, another version."""
    with Job(1, 2) as job:
        job.train(1)
        assert job.update(1) == [None]
        trainer, *workers = job.told
        other = {
            "parameter 'norm' of worker 0: no trainer has it":
                [without(trainer, "norm"), *workers],
            "parameter 'norm' of trainer 0: no worker has it":
                [trainer, *(without(told, "norm") for told in workers)],
            "weights: no size is known for elements of type 'float3'":
                [trainer, *(told.replace(b'"float32"', b'"float3"') for told in workers)],
            "asked for version 2 of holdings, found 3":
                [trainer, *(told.replace(b'"version": 2', b'"version": 3') for told in workers)],
        }  # fmt: skip
        for version, (words, told) in enumerate(other.items(), start=2):
            for side in (*job.senders, *job.receivers):
                with pytest.raises(braid.InvalidArgument, match=words):
                    side.join(told)
            job.train(version)
            assert job.update(version) == [None]
            assert job.is_served(version)


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
        for word in (b"nonsense", Landed(9, 1, 0, 0, 0, 1 << 40, 7).encode()):
            odd.notify(job.engines[1].address, word).wait(LIMIT_S)
        job.train(1)
        assert job.update(1) == [None]
        assert job.is_served(1)
    assert threading.active_count() < 50


def test_a_version_that_is_committed_is_not_said_to_be_off():
    """Workers come back from on_resume too late for the trainers."""
    goes_on = threading.Event()
    with Job(2, 2, on_resume=lambda _: goes_on.wait(LIMIT_S)) as job:
        job.train(1)
        errors = job.update(1, 1.0)
        assert all(isinstance(error, (braid.Timeout, braid.Cancelled)) for error in errors)
        assert all("version 1 is committed" in str(error) for error in errors)
        assert "'applied' of workers [0, 1]" in str(errors[0])
        assert [sender.committed for sender in job.senders] == [1, 1]
        assert job.is_served(1)
        goes_on.set()
        job.train(2)
        assert job.update(2) == [None, None]
        assert job.is_served(2)
        assert not any(receiver.trouble for receiver in job.receivers)


def refusing(sender, kind, rank, times):
    """Of the letters of a kind to one worker so many find no room under way."""
    real, left = sender._say, [times]

    def say(to, head, body=b""):
        if head["kind"] == kind and to.rank == rank and to.side == "worker" and left[0]:
            left[0] -= 1
            raise braid.Exhausted("as many are under way as may be")
        return real(to, head, body)

    sender._say = say


def test_a_commit_that_finds_no_room_is_said_again():
    with Job(2, 2) as job:
        refusing(job.senders[0], "commit", 1, 5)
        job.train(1)
        assert job.update(1) == [None, None]
        assert job.is_served(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_commit_that_cannot_be_said_is_told_apart(rank):
    """To the first worker: the version is off. To a later one: it is served by the others."""
    with Job(2, 2, patience=3) as job:
        refusing(job.senders[0], "commit", rank, 10**9)
        job.train(1)
        errors = job.update(1, 1.0)
        assert all(("is committed" in str(error)) == (rank == 1) for error in errors)
        assert job.senders[0].committed == (1 if rank == 1 else None)
        assert [receiver.version for receiver in job.receivers] == [1 if rank == 1 else None, None]


def test_a_copy_that_breaks_off_leaves_nothing_served(monkeypatch):
    with Job(1, 2) as job:
        job.train(1)
        assert job.update(1) == [None]

        copy_over = receiver_module.copy_over

        def broken(served, landed):
            if served is job.receivers[1]._parameters:
                raise RuntimeError("out of order")
            copy_over(served, landed)

        monkeypatch.setattr(receiver_module, "copy_over", broken)
        job.train(2)
        (error,) = job.update(2)
        assert "version 2 is committed: worker 1: RuntimeError('out of order')" in str(error)
        assert job.receivers[1].version is None
        job.receivers[0].wait(2, LIMIT_S)


def left_behind(sender, when):
    """update(1) of a leader that is killed: behind `go` when all are ready, or behind `have`."""

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    def say(to, head, body=b""):
        if head["kind"] in ("commit", "abort"):
            raise Killed
        return Sender._say(sender, to, head, body)

    sender._say = say
    if when == "ready":
        sender._send_all = killed
    with pytest.raises(Killed):
        sender.update(1, LIMIT_S)


def replaced_leader(job, way="local"):
    job.senders[0].close()
    job.engines[0].close()
    arrays, parameters = job.parts(len(job.senders), 0, ROWS, np.float32)
    job.sent[0] = arrays
    job.senders[0] = Sender(job.engine(way, "heir"), 0, parameters)


@pytest.mark.parametrize("is_renewed", [True, False], ids=["renewed", "joined alone"])
@pytest.mark.parametrize("when", ["ready", "have"])
@pytest.mark.parametrize("mode", ["two buffers", "in place"])
def test_a_leader_that_was_killed_is_replaced_at_once(mode, when, is_renewed):
    """Workers that wait for the dead one do not do so to the end of their patience."""
    failed = []
    with Job(1, 2, mode=mode, patience=4 * LIMIT_S, on_failure=failed.append) as job:
        left_behind(job.senders[0], when)
        replaced_leader(job)
        for receiver in job.receivers if is_renewed else ():
            receiver.renew()
        job.join()
        job.train(2)
        assert job.update(2, LIMIT_S / 2) == [None]
        assert job.is_served(2)
        assert [receiver.trouble for receiver in job.receivers] == ["", ""]
        assert failed == [f"version 1: worker {n} joins anew" for n in (0, 1)] or failed == [
            f"version 1: worker {n} joins anew" for n in (1, 0)
        ]


def test_behind_have_nobody_knows_what_was_served():
    """Until the next version is there, who had said `have` serves nothing."""
    with Job(1, 2) as job:
        left_behind(job.senders[0], "have")
        job.receivers[0].renew()
        until = time.monotonic() + LIMIT_S
        while not job.receivers[0].trouble and time.monotonic() < until:
            time.sleep(0.01)
        assert job.receivers[0].trouble == "version 1: worker 0 joins anew"
        assert job.receivers[0]._is_torn
        with pytest.raises(braid.Timeout, match="worker 0 joins anew"):
            job.receivers[0].wait(1, 0.01)


@pytest.mark.parametrize("is_renewed", [True, False])
def test_a_go_that_comes_before_its_worker_has_joined_is_kept(is_renewed):
    with Job(1, 1) as job:
        job.train(1)
        assert job.update(1) == [None]
        replaced_leader(job)
        job.train(2)
        told = [job.senders[0].describe(), job.receivers[0].describe()]
        if is_renewed:
            told[1] = job.receivers[0].renew()
        job.senders[0].join(told)
        with ThreadPoolExecutor(1) as threads:
            updated = threads.submit(job.update, 2)
            time.sleep(0.5)  # as long as it takes until `go` is here, and somebody has looked at it
            assert not updated.done()
            job.receivers[0].join(told)
            assert updated.result() == [None]
        assert job.is_served(2)


@pytest.mark.parametrize("when", ["ready", "have"])
def test_a_leader_that_goes_on_without_a_word_is_followed(when):
    """Its `abort`, or its `commit`, was lost; its next `go` is not."""
    with Job(1, 1, patience=4 * LIMIT_S) as job:
        sender = job.senders[0]
        left_behind(sender, when)
        del sender._say
        sender.__dict__.pop("_send_all", None)
        job.train(2)
        assert job.update(2, LIMIT_S / 2) == [None]
        assert job.is_served(2)


def test_what_was_kept_of_another_plan_is_no_word_of_this_one():
    """A trainer has heard `ready` of a version to come; all join anew before it has gone there."""
    with Job(2, 1) as job:
        late = job.senders[1]
        late.kept.append(({"kind": "ready", "version": 2, "side": "worker", "rank": 0}, b""))
        job.receivers[0].renew()
        job.join()
        with pytest.raises(braid.Timeout, match="trainer 1 has waited in vain for 'ready'"):
            late.update(2, timeout=0.5)


def test_the_same_plan_again_changes_nothing():
    """A version that is under way goes on, and so do those that come."""
    pauses = []
    with Job(1, 1, on_pause=lambda: pauses.append(job.receivers[0].join(job.told))) as job:
        job.train(1)
        assert job.update(1) == [None]
        assert job.is_served(1)
        assert len(pauses) == 1


class Late:
    """A send that begins a while later, as on a host that does much else."""

    def __init__(self, begin):
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(begin,), daemon=True).start()

    def _run(self, begin):
        time.sleep(0.3)
        try:
            begin().wait(LIMIT_S)
        except braid.Error:
            pass
        finally:
            self._ended.set()

    def wait(self, timeout):
        if not self._ended.wait(timeout):
            raise braid.Timeout("planned")

    def done(self):
        return self._ended.is_set()


@pytest.mark.parametrize("side", ["senders", "receivers"])
def test_the_last_word_of_who_ends_with_its_last_version_is_heard(side):
    """'served' of trainer 0, 'applied' of a worker: they were cancelled with the engine."""
    with Job(3, 2) as job:
        engine = getattr(job, side)[0].engine
        send = engine.send
        engine.send = lambda to, data: Late(partial(send, to, data))

        def served(receiver):
            with receiver.engine, receiver:
                receiver.wait(1, LIMIT_S)

        def sent(sender):
            with sender.engine, sender:
                sender.update(1, 5)

        job.train(1)
        with ThreadPoolExecutor(5) as threads:
            workers = [threads.submit(served, each) for each in job.receivers]
            trainers = [threads.submit(sent, each) for each in job.senders]
            for each in (*workers, *trainers):
                each.result(LIMIT_S)
        assert job.is_served(1)


def test_who_waits_is_told_when_the_receiver_or_its_engine_is_closed():
    for close in (lambda job: job.receivers[0].close(), lambda job: job.engines[1].close()):
        with Job(1, 1) as job, ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(job.receivers[0].wait, 1, float("inf"))
            time.sleep(0.05)
            close(job)
            with pytest.raises(braid.Cancelled, match="worker 0: it was closed, and version 1 is"):
                waiting.result(LIMIT_S)


def test_a_closed_sender_sends_nothing():
    with Job(1, 1) as job:
        job.train(1)
        assert job.update(1) == [None]
        job.senders[0].close()
        with pytest.raises(braid.InvalidArgument, match="trainer 0: asked for an update behind"):
            job.senders[0].update(2)
        job.receivers[0].close()
        job.receivers[0].wait(1)  # what is served stays so


def test_an_engine_that_is_closed_before_who_sends_and_receives():
    for way in ("local", "tcp"):
        with Job(1, 1, way) as job:
            job.train(1)
            assert job.update(1) == [None]
            for engine in job.engines:
                engine.close()  # and with it its regions
        with braid.Engine(**options(way, "s")) as a, braid.Engine(**options(way, "r")) as b:
            sides = StreamSender(a, bucket=4096), StreamReceiver(b, 0, bucket=4096)
            b.close()
            for side in (*sides, *sides):  # again, too
                side.close()
