"""Whole tensors through others' doors: vLLM's and verl's interfaces, by stand-ins for both."""

import asyncio
import importlib
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from engine_peers import options

import braid
from braid.weights import stream
from braid.weights.stream import StreamReceiver, StreamSender

LIMIT_S = 30
BUCKET = 4096
TOKEN = {"nics": "none", "token": "a token of tests", "hosts": "127.0.0.1"}


def tensors(version):
    rng = np.random.default_rng(version)
    shapes = {"a": (7, 11), "long": (3000,), "b": (), "none": (0, 3), "c": (64, 5)}
    return [
        (name, rng.random(shape).astype(np.float32 if i % 2 else np.float64))
        for i, (name, shape) in enumerate(shapes.items())
    ]


def same(found, version):
    wanted = tensors(version)
    return [name for name, *_ in found] == [name for name, _ in wanted] and all(
        dtype == str(tensor.dtype)
        and tuple(shape) == tensor.shape
        and np.array_equal(data.view(tensor.dtype).reshape(shape), tensor)
        for (_, dtype, shape, data), (_, tensor) in zip(found, wanted, strict=True)
    )


@pytest.fixture
def ends():
    with (
        braid.Engine(**options("local", "t")) as ours,
        braid.Engine(**options("local", "w0")) as first,
        braid.Engine(**options("local", "w1")) as second,
        StreamSender(ours, BUCKET) as sender,
        StreamReceiver(first, 0, BUCKET) as a,
        StreamReceiver(second, 1, BUCKET) as b,
    ):
        for receiver in (a, b):
            receiver.join(sender.address)
        sender.gather(2, LIMIT_S)
        yield sender, [a, b]


def test_tensors_arrive_whole_in_buckets(ends):
    sender, receivers = ends
    with ThreadPoolExecutor(3) as threads:
        for version in range(4):
            sent = threads.submit(sender.send, tensors(version), version, LIMIT_S)
            got = [
                threads.submit(lambda r=r, v=version: list(r.receive(v, LIMIT_S)))
                for r in receivers
            ]
            assert all(same(one.result(LIMIT_S), version) for one in got)
            sent.result(LIMIT_S)


def arrived(ends, named):
    """What the first worker gets, as torch's tensors."""
    from braid.weights.doors.tensors import tensor_of

    sender, receivers = ends
    with ThreadPoolExecutor(3) as threads:
        sent = threads.submit(sender.send, named, 1, LIMIT_S)
        found = [threads.submit(lambda r=r: list(r.receive(1, LIMIT_S))) for r in receivers]
        sent.result()
        return {
            name: tensor_of(dtype, shape, data) for name, dtype, shape, data in found[0].result()
        }


def test_arrays_of_any_form_arrive(ends, torch):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    records = np.zeros(4, [("x", "f4"), ("y", "i2")])
    records["x"] = [1, 2, 3, 4]
    arrays = {
        "turned": array.T,
        "backwards": array[::-1],
        "columns": array[:, 1:3],
        "repeated": np.broadcast_to(np.float32(3), (3, 4)),
        "a field": records["x"],
        "another byte order": array.astype(">f4"),
        "one": np.array(3.0),
    }
    tensor = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "t": tensor.t(),
        "expanded": torch.ones(1, 4).expand(3, 4),
        "asks for gradients": torch.nn.Parameter(tensor[:, ::2]),
        "bfloat16": tensor.bfloat16().t(),
        "float8": tensor.to(torch.float8_e4m3fn).t(),
        "conjugated": torch.complex(tensor, tensor).conj(),
        "negated": torch.complex(tensor, tensor).conj().imag,
    }
    found = arrived(ends, [*arrays.items(), *tensors.items()])
    for name, array in arrays.items():
        assert found[name].numpy().tolist() == array.tolist(), name
    for name, each in tensors.items():
        assert found[name].dtype == each.dtype
        assert found[name].tolist() == each.tolist(), name


def test_a_tensor_without_memory_is_named(ends, torch):
    sender, _ = ends
    with pytest.raises(
        braid.InvalidArgument, match=r"tensor 'far': .*own .*found a Tensor on 'meta"
    ):
        sender.send([("far", torch.zeros(3, device="meta"))], 1, LIMIT_S)


def test_what_goes_wrong_is_said_to_the_other_side(ends):
    sender, receivers = ends

    def broken():
        yield from tensors(1)[:2]
        raise braid.InvalidArgument("no more of them")

    with ThreadPoolExecutor(3) as threads:
        sent = threads.submit(sender.send, broken(), 1, LIMIT_S)
        got = [threads.submit(lambda r=r: list(r.receive(1, LIMIT_S))) for r in receivers]
        for one in got:
            with pytest.raises(braid.Cancelled, match="the trainer says: no more of them"):
                one.result(LIMIT_S)
        with pytest.raises(braid.InvalidArgument):
            sent.result(LIMIT_S)
        receivers[1]._mail.say(
            receivers[1]._trainer, {"kind": "bad", "version": 2, "rank": 1, "why": "out of memory"}
        )
        sent = threads.submit(sender.send, tensors(2), 2, LIMIT_S)
        got = [threads.submit(lambda r=r: list(r.receive(2, LIMIT_S))) for r in receivers]
        with pytest.raises(braid.Cancelled, match="worker 1: out of memory"):
            sent.result(LIMIT_S)
        for one in got:
            with pytest.raises(braid.Cancelled, match="out of memory"):
                one.result(LIMIT_S)


def test_a_worker_that_goes_no_further_is_told_of(ends):
    """Its loader failed, say, with an error that is not braid's."""
    sender, receivers = ends
    with ThreadPoolExecutor(2) as threads:
        sent = threads.submit(sender.send, tensors(1), 1, LIMIT_S)
        other = threads.submit(lambda: list(receivers[0].receive(1, LIMIT_S)))
        for _ in receivers[1].receive(1, LIMIT_S):
            break
        with pytest.raises(braid.Cancelled, match="worker 1: did not take all of it"):
            sent.result(LIMIT_S)
        with pytest.raises(braid.Cancelled, match="did not take all of it"):
            other.result(LIMIT_S)


def of(value, count=8):
    """So small that all of them are one bucket, the last."""
    return [(f"x{number}", np.full(100, value, np.uint8)) for number in range(count)]


def test_a_half_that_is_read_still_is_not_written_by_the_next_version(ends):
    """One worker says nothing, so that the version fails, and the other one is slow."""
    sender, (silent, slow) = ends
    got = slow.receive(1, LIMIT_S)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(next, got)
        with pytest.raises(braid.Timeout, match=r"workers \[0, 1\] to take a bucket"):
            sender.send(of(1), 1, 0.3)
        first.result(LIMIT_S)
        with pytest.raises(braid.Timeout, match=r"workers \[0, 1\] to take a bucket"):
            sender.send(of(2), 2, 0.3)
        assert all((data == 1).all() for *_, data in got)
        # Both go on; what is left of the two versions in the silent one's mail is let go of.
        sent = threads.submit(sender.send, of(3), 3, LIMIT_S)
        for receiver in (silent, slow):
            assert all((data == 3).all() for *_, data in receiver.receive(3, LIMIT_S))
        sent.result(LIMIT_S)


def test_a_worker_that_joins_anew_is_not_waited_for(ends):
    sender, (silent, other) = ends
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(sender.send, of(1), 1, 0.5)
        assert len(list(other.receive(1, LIMIT_S))) == 8
        with pytest.raises(braid.Timeout, match=r"workers \[0\] to take a bucket"):
            sent.result(LIMIT_S)
    with (
        braid.Engine(**options("local", "heir")) as engine,
        StreamReceiver(engine, 0, BUCKET) as heir,
        ThreadPoolExecutor(1) as threads,
    ):
        heir.join(sender.address)
        sent = threads.submit(sender.send, of(2), 2, LIMIT_S)
        for receiver in (heir, other):
            assert all((data == 2).all() for *_, data in receiver.receive(2, LIMIT_S))
        sent.result(LIMIT_S)
    del silent


def test_a_worker_that_comes_in_the_midst_of_a_version_does_not_end_well(ends):
    sender, (silent, other) = ends
    with ThreadPoolExecutor(2) as threads:
        got = threads.submit(lambda: list(other.receive(1, LIMIT_S)))
        sent = threads.submit(sender.send, of(1, 100), 1, LIMIT_S)
        next(silent.receive(1, LIMIT_S))  # its generator goes at once: the version is off
        with pytest.raises(braid.Cancelled, match="worker 0: did not take all of it"):
            sent.result(LIMIT_S)
        with pytest.raises(braid.Cancelled):
            got.result(LIMIT_S)
        sender._mail.say(
            braid.engine.Peer(other._engine.address.data),
            {"kind": "bucket", "version": 2, "number": 3, "half": 1},
        )
        with pytest.raises(braid.InvalidArgument, match="bucket 3 has come, and no bucket 0"):
            list(other.receive(2, LIMIT_S))


@pytest.mark.parametrize("how", ["well", "badly"])
def test_a_version_is_sent_once(ends, how):
    """A worker's words of the first time would be taken for those of the second; it is told."""
    sender, (first, second) = ends

    def sent(pairs, version):
        with ThreadPoolExecutor(3) as threads:
            found = [
                threads.submit(lambda r=r: list(r.receive(version, 5))) for r in (first, second)
            ]
            try:
                sender.send(pairs, version, LIMIT_S)
            except (braid.Error, RuntimeError) as error:
                return [error, *(each.exception() for each in found)]
            return [None, *(each.exception() for each in found)]

    def broken():
        yield from tensors(7)
        raise RuntimeError("not today")

    first_time = sent(broken() if how == "badly" else tensors(7), 7)
    assert [error is not None for error in first_time] == [how == "badly"] * 3
    for version in (7, 6):
        error, *theirs = sent(tensors(7), version)
        assert isinstance(error, braid.InvalidArgument)
        assert f"version {version} after 7: each is sent once" in str(error)
        assert all("the trainer says" in str(each) for each in theirs)
    assert sent(tensors(8), 8) == [None] * 3


def test_whatever_the_tensors_raise_is_said(ends):
    sender, receivers = ends

    def broken():
        yield from of(1)
        raise ValueError("no more of them")

    with ThreadPoolExecutor(3) as threads:
        got = [threads.submit(lambda r=r: list(r.receive(1, LIMIT_S))) for r in receivers]
        with pytest.raises(ValueError, match="no more of them"):
            sender.send(broken(), 1, LIMIT_S)
        for one in got:
            with pytest.raises(braid.Cancelled, match="no more of them"):
                one.result(LIMIT_S)


def test_a_write_that_fails_is_raised_when_all_others_have_ended(ends, monkeypatch):
    """They read the trainer's memory until then."""
    sender, _ = ends
    begun, waited, write = [], [], sender._engine.write

    def begin(*args, **more):
        ticket, number = write(*args, **more), len(begun)
        begun.append(ticket)

        def wait(timeout=None):
            type(ticket).wait(ticket, timeout)
            waited.append(number)
            if number == 0:
                raise braid.PeerLost("it")

        monkeypatch.setattr(ticket, "wait", wait)
        return ticket

    monkeypatch.setattr(sender._engine, "write", begin)
    with pytest.raises(braid.PeerLost):
        sender.send(of(1), 1, LIMIT_S)
    assert waited == [0, 1]


def test_another_checksum_is_refused_by_name(ends, monkeypatch):
    sender, receivers = ends
    monkeypatch.setattr(stream, "NAME", "crc32")
    receivers[0].join(sender.address)
    monkeypatch.undo()
    with pytest.raises(braid.InvalidArgument, match="worker 0 compares checksums 'crc32'"):
        sender.gather(3, LIMIT_S)
    with pytest.raises(braid.Cancelled, match="the trainer has 'crc64nvme'"):
        list(receivers[0].receive(0, LIMIT_S))


def test_buckets_and_times_that_are_none_are_refused(ends):
    sender, receivers = ends
    calls = (
        partial(sender.gather, 2),
        partial(sender.send, [], 1),
        lambda timeout: next(receivers[0].receive(1, timeout)),
    )
    for wrong in (float("nan"), "1", None, -1):
        for call in calls:
            with pytest.raises(braid.InvalidArgument, match="timeout: asked for"):
                call(timeout=wrong)
    for wrong in (float("nan"), "1", None, -1, 1e6, 127):
        for make in (StreamSender, partial(StreamReceiver, rank=0)):
            with pytest.raises(braid.InvalidArgument, match="bucket: asked for 128 bytes"):
                make(sender._engine, bucket=wrong)


def test_another_bucket_and_a_worker_that_does_not_come_are_named(ends):
    sender, receivers = ends
    with pytest.raises(braid.Timeout, match=r"workers \[2\] to join"):
        sender.gather(3, 0.2)
    with (
        braid.Engine(**options("local", "w2")) as third,
        StreamReceiver(third, 2, 2 * BUCKET) as odd,
    ):
        odd.join(sender.address)
        with pytest.raises(braid.InvalidArgument, match="a bucket of 8192 bytes at worker 2, 4096"):
            sender.gather(3, LIMIT_S)
        with pytest.raises(braid.Cancelled, match="a bucket of 8192 bytes"):
            list(odd.receive(0, LIMIT_S))
    with pytest.raises(braid.Timeout, match=r"workers .* to take a bucket"):
        sender.send(tensors(1), 1, 0.5)
    del receivers


def module(monkeypatch, name, **contents):
    parts = name.split(".")
    for count in range(1, len(parts)):
        if ".".join(parts[:count]) not in sys.modules:
            monkeypatch.setitem(
                sys.modules, ".".join(parts[:count]), types.ModuleType(".".join(parts[:count]))
            )
    made = types.ModuleType(name)
    for key, value in contents.items():
        setattr(made, key, value)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_vllms_weight_engine(monkeypatch, torch):
    """trainer_init, then per step start, update and finish, in vLLM's order, on two workers."""

    class Base:
        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config, self.device, self.model = (
                config, vllm_config, device, model,
            )  # fmt: skip
            self.parallel_config = vllm_config.parallel_config

    known, calls = {}, []
    module(
        monkeypatch, "vllm.distributed.weight_transfer.base", WeightTransferEngine=Base,
        TrainerWeightTransferEngine=object, TrainerInitInfo=_trainer_info(),
        WeightTransferInitInfo=object, WeightTransferUpdateInfo=object,
    )  # fmt: skip
    module(
        monkeypatch, "vllm.distributed.weight_transfer.factory",
        WeightTransferEngineFactory=types.SimpleNamespace(register_engine=known.__setitem__),
    )  # fmt: skip
    module(
        monkeypatch, "vllm.model_executor.model_loader.reload",
        initialize_layerwise_reload=lambda model: calls.append(("begin", model.rank)),
        finalize_layerwise_reload=lambda model, config: calls.append(("end", model.rank, config)),
    )  # fmt: skip
    monkeypatch.delitem(sys.modules, "braid.weights.doors.vllm", raising=False)
    from braid.weights.doors import vllm as door

    door.register()

    class Model:
        def __init__(self, rank):
            self.rank, self.held = rank, {}

        def load_weights(self, weights):
            self.held = {name: tensor.clone() for name, tensor in weights}

    def worker(rank):
        config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(rank=rank, world_size=2), model_config="m"
        )
        return known["braid"](None, config, "cpu", Model(rank))

    workers = [worker(0), worker(1)]

    class Client:
        """What vLLM does with its four requests: each on all workers."""

        def all(self, call):
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(call, workers))

        def init_weight_transfer_engine(self, info):
            self.all(lambda w: w.init_transfer_engine(w.init_info_cls(**info)))

        def start_weight_update(self):
            self.all(lambda w: w.start_weight_update())

        def update_weights(self, info):
            self.all(lambda w: w.receive_weights(w.update_info_cls(**info)))

        def finish_weight_update(self, version=None):
            calls.append(version)
            self.all(lambda w: w.finish_weight_update())

    source = [("w", torch.arange(900, dtype=torch.float32)), ("h", torch.ones(3, 5).bfloat16())]
    info = door.BraidTrainerInfo(
        rank=0, workers=2, bucket=BUCKET, engine=TOKEN, worker_engine=TOKEN
    )
    trainer = door.BraidTrainerEngine.trainer_init(info, Client(), source)
    for _ in range(2):
        source[0][1].add_(1)
        trainer.send_weights()
        for each in workers:
            assert torch.equal(each.model.held["w"], source[0][1])
            assert torch.equal(each.model.held["h"], source[1][1])
    assert sorted(map(str, calls)).count("('begin', 1)") == 2
    assert "2" in calls
    for side in (trainer, *workers):
        side.shutdown()


def test_vllms_other_side_is_not_waited_for_behind_an_error(monkeypatch, torch):
    names = ("TrainerInitInfo", "TrainerWeightTransferEngine", "WeightTransferEngine",
             "WeightTransferInitInfo", "WeightTransferUpdateInfo")  # fmt: skip
    classes = {name: type(name, (), {}) for name in names}
    classes["TrainerInitInfo"] = _trainer_info()
    module(monkeypatch, "vllm.distributed.weight_transfer.base", **classes)
    monkeypatch.delitem(sys.modules, "braid.weights.doors.vllm", raising=False)
    from braid.weights.doors import vllm as door

    monkeypatch.setattr(door, "_QUICK_S", 0.05)
    comes_back = threading.Event()

    def ours():
        raise braid.Timeout("a worker did not join")

    with pytest.raises(braid.Timeout, match="did not join"):
        door._beside(lambda: comes_back.wait(LIMIT_S), ours)
    comes_back.set()
    del torch


def _trainer_info():
    from dataclasses import dataclass, field

    @dataclass
    class TrainerInitInfo:
        rank: int = field(kw_only=True)

    return TrainerInitInfo


def test_verls_checkpoint_engine(monkeypatch, torch):
    """prepare, build_topology, init_process_group, send and receive, finalize; twice."""
    known = {}
    module(
        monkeypatch, "verl.checkpoint_engine.base", CheckpointEngine=object,
        CheckpointEngineRegistry=types.SimpleNamespace(
            register=lambda name: lambda made: known.setdefault(name, made)
        ),
    )  # fmt: skip
    monkeypatch.delitem(sys.modules, "braid.weights.doors.verl", raising=False)

    importlib.import_module("braid.weights.doors.verl")
    made = [known["braid"](bucket_size=BUCKET, engine=TOKEN) for _ in range(4)]
    for step in (1, 2):
        told = [engine.prepare() for engine in made]
        sides = known["braid"].build_topology(2, 2, told)
        for engine, (side, rank) in zip(made, [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
            engine.init_process_group(**{key: values[rank] for key, values in sides[side].items()})
        weights = [("w", torch.full((500,), float(step))), ("x", torch.arange(7))]
        found = {}

        async def take(rank, step=step, found=found):
            found[rank] = {n: t async for n, t in made[2 + rank].receive_weights(step)}

        async def run(step=step, weights=weights, take=take):
            sent = [made[rank].send_weights(iter(weights), step) for rank in range(2)]
            await asyncio.gather(*sent, take(0), take(1))

        asyncio.run(run())
        for rank in range(2):
            assert all(torch.equal(found[rank][name], tensor) for name, tensor in weights)
        for engine in made:
            engine.finalize()
    assert threading.active_count() < 60
