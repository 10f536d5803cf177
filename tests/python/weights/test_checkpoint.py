"""checkpoint-engine's dialogue: a stand-in for its worker, which does as 0.4.2's does, and the real
one where it is installed.
"""

import functools
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine_peers import options

import braid
from braid.weights.stream import StreamReceiver, StreamSender

torch = pytest.importorskip("torch")
zmq = pytest.importorskip("zmq")

from checkpoint_worker import stand_in  # noqa: E402

from braid.weights.doors import checkpoint  # noqa: E402

LIMIT_S = 30
SHARED, BUCKET = 8192, 4096


def real(monkeypatch):
    """Its own code; without a GPU it has no device to wait for."""
    pytest.importorskip("checkpoint_engine")
    from checkpoint_engine import worker

    quiet = types.SimpleNamespace(
        synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None
    )
    monkeypatch.setattr(worker, "DeviceManager", lambda: types.SimpleNamespace(device_module=quiet))
    return worker.update_weights_from_ipc


@pytest.fixture(params=["stand-in", "checkpoint-engine"])
def worker(request, monkeypatch):
    return stand_in if request.param == "stand-in" else real(monkeypatch)


def tensors(version):
    generator = torch.Generator().manual_seed(version)
    found = {f"w{n}": torch.randn(37, n % 20 + 1, generator=generator) for n in range(30)}
    found["half"] = torch.randn(900, generator=generator).bfloat16()
    return found | {"empty": torch.zeros(0, 3), "number": torch.tensor(float(version))}


class Server:
    """An inference server of two workers, as threads."""

    def __init__(self, worker):
        self.worker = worker
        self.context = zmq.Context()
        self.held = {"GPU-a": {}, "GPU-b": {}}
        self.finished = []
        self.trouble = None

    def load(self, name, named):
        for key, tensor in named:
            if (name, key) == self.trouble:
                raise RuntimeError(f"no room for {key}")
            self.held[name][key] = tensor.clone()

    def take(self, sockets):
        def one(name):
            self.worker(
                self.context, sockets[name], None, run=functools.partial(self.load, name),
                post_hook=lambda: self.finished.append(name),
            )  # fmt: skip

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(one, sockets))


@pytest.fixture
def job(worker):
    with (
        braid.Engine(**options("local", "t")) as ours,
        braid.Engine(**options("local", "w0")) as first,
        braid.Engine(**options("local", "w1")) as second,
        StreamSender(ours, BUCKET) as sender,
        StreamReceiver(first, 0, BUCKET) as a,
        StreamReceiver(second, 1, BUCKET) as b,
        checkpoint.Dialogue(a, "GPU-a", SHARED, device="cpu") as one,
        checkpoint.Dialogue(b, "GPU-b", SHARED, device="cpu") as two,
        ThreadPoolExecutor(2) as threads,
    ):
        for receiver in (a, b):
            receiver.join(sender.address)
        sender.gather(2, LIMIT_S)
        server = Server(worker)
        yield sender, [one, two], server, threads
        server.context.destroy(0)


def test_a_server_loads_what_the_trainer_has(job):
    sender, dialogues, server, threads = job
    for version in (1, 2):
        sent = threads.submit(sender.send, tensors(version).items(), version, LIMIT_S)
        checkpoint.update(dialogues, version, server.take, LIMIT_S)
        sent.result(LIMIT_S)
        for held in server.held.values():
            assert held.keys() == tensors(version).keys()
            assert all(torch.equal(held[name], t) for name, t in tensors(version).items())
            held.clear()
    assert sorted(server.finished) == ["GPU-a", "GPU-a", "GPU-b", "GPU-b"]


def test_who_has_all_the_time_waits(job):
    sender, dialogues, server, threads = job
    for version, endless in ((1, float("inf")), (2, 10**400)):
        sent = threads.submit(sender.send, tensors(version).items(), version, endless)
        checkpoint.update(dialogues, version, server.take, endless)
        sent.result(LIMIT_S)
    for wrong in (-1, float("nan"), "1", None):
        with pytest.raises(braid.InvalidArgument, match="update: timeout: asked for"):
            checkpoint.update(dialogues, 3, lambda _: None, wrong)


def test_a_worker_that_cannot_load_is_named_on_both_sides(job):
    sender, dialogues, server, threads = job
    server.trouble = ("GPU-b", "w7")
    sent = threads.submit(sender.send, tensors(1).items(), 1, LIMIT_S)
    with pytest.raises(braid.Error, match="worker 'GPU-b': RuntimeError: no room for w7"):
        checkpoint.update(dialogues, 1, server.take, LIMIT_S)
    with pytest.raises(braid.Cancelled, match="no room for w7"):
        sent.result(LIMIT_S)
    assert server.finished == []
    # The next version goes through.
    server.trouble = None
    sent = threads.submit(sender.send, tensors(2).items(), 2, LIMIT_S)
    checkpoint.update(dialogues, 2, server.take, LIMIT_S)
    sent.result(LIMIT_S)
    assert torch.equal(server.held["GPU-b"]["w7"], tensors(2)["w7"])


def test_a_tensor_that_is_too_long_and_a_server_that_does_not_come(job):
    sender, dialogues, server, threads = job
    sent = threads.submit(sender.send, [("long", torch.zeros(2000))], 1, LIMIT_S)
    with pytest.raises(braid.InvalidArgument, match=r"'long' is of 8000 bytes; half .* is 4096"):
        checkpoint.update(dialogues, 1, server.take, LIMIT_S)
    with pytest.raises(braid.Cancelled):
        sent.result(LIMIT_S)
    with pytest.raises(braid.Timeout, match="has not connected"):
        checkpoint.update(dialogues, 2, lambda _: None, 0.3)
