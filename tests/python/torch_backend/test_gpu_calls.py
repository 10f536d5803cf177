"""The order of streams and events around calls on a GPU, and how long tensors are held, on a
stand-in for torch.cuda that writes down what was asked of it. tests/gpu/torch_backend.py runs the
real one.
"""

import gc
import weakref

import pytest
import torch
from torch_backend_cuda import GPU, FakeCuda

import braid
from braid.torch import streams
from braid.torch.gpu_calls import GpuCalls, refuse_capture
from braid.torch.streams import CallerStream


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(streams, "raw_stream", lambda _gpu: fake.current.cuda_stream)
    return fake


def submit(calls, cuda, name="call", *, is_async, tensors=(), fails=False):
    def body():
        cuda.log.append(f"{name} on {cuda.current.name}")
        if fails:
            raise braid.PeerLost("rank 3 died")

    return calls.submit(name, GPU, tensors, tensors, body, is_async=is_async)


def enqueue(calls, cuda, name="call", *, is_async, tensors=(), fails=False):
    def call(handle):
        cuda.log.append(f"{name} at {handle}")
        if fails:
            raise braid.PeerLost("rank 3 died")

    return calls.enqueue(name, GPU, tensors, tensors, call, is_async=is_async)


WAYS = pytest.mark.parametrize("way", [submit, enqueue])


def test_a_synchronous_call_is_on_the_callers_stream(cuda):
    work = submit(GpuCalls(), cuda, is_async=False)
    assert cuda.log == ["call on default"]
    work.wait()
    assert cuda.log == ["call on default"]  # nothing to wait for
    assert not work.is_completed()
    cuda.current.finish()
    assert work.is_completed()
    assert work.is_success()


def test_an_asynchronous_call_lies_between_two_events(cuda):
    calls = GpuCalls()
    with cuda.stream(cuda.Stream(GPU)) as user:
        work = submit(calls, cuda, is_async=True)
        work.wait()
    assert cuda.log == [
        "s2 waits for s1",
        "call on s2",
        "e1 recorded on s2",
        "s1 waits for e1",
    ]
    assert user.name == "s1"
    cuda.log.clear()
    submit(calls, cuda, "next", is_async=True)  # the same stream, so in order
    assert cuda.log[:2] == ["s2 waits for default", "next on s2"]


@WAYS
def test_tensors_are_held_until_somebody_waited_or_the_stream_has_passed(cuda, way):
    calls = GpuCalls()

    def alive(tensor):
        gc.collect()
        return tensor() is not None

    first, second = torch.ones(3), torch.ones(3)
    seen = [weakref.ref(first), weakref.ref(second)]
    works = [way(calls, cuda, is_async=True, tensors=[t]) for t in (first, second)]
    for work in works:
        work.result().clear()  # the work's own list of results is not what is asked about
    del first, second
    assert [alive(each) for each in seen] == [True, True]
    works[1].wait()
    assert [alive(each) for each in seen] == [True, False]
    works[0]._event.is_done = True
    del works, work
    way(calls, cuda, is_async=True)  # the next call looks
    assert [alive(each) for each in seen] == [False, False]


@WAYS
@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_shows_at_wait_and_in_the_future(cuda, is_async, way):
    work = way(GpuCalls(), cuda, is_async=is_async, fails=True)
    assert work.is_completed()
    assert not work.is_success()
    with pytest.raises(braid.PeerLost, match="rank 3"):
        work.wait()
    with pytest.raises(RuntimeError, match="rank 3"):
        work.get_future().wait()


def test_a_limit_of_wait_makes_the_host_wait(cuda):
    from datetime import timedelta

    work = submit(GpuCalls(), cuda, "slow", is_async=True)
    with pytest.raises(braid.Timeout, match="slow"):
        work.wait(timedelta(milliseconds=20))
    cuda.events[0].is_done = True
    assert work.wait(timedelta(milliseconds=20))


def test_nothing_captured_is_asked_whether_it_is_done(cuda):
    calls = GpuCalls()
    submit(calls, cuda, is_async=True)
    cuda.is_capturing = True
    captured = submit(calls, cuda, "captured", is_async=True)
    assert cuda.asked == []
    captured.wait()
    with pytest.raises(braid.InvalidArgument, match="messages cannot be captured"):
        refuse_capture("messages")
    cuda.is_capturing = False
    refuse_capture("messages")
    submit(calls, cuda, is_async=True)
    assert cuda.asked == ["e1"]  # and not the captured one


def test_the_fence_waits_for_both_streams(cuda):
    calls = GpuCalls()
    calls.fence()()
    assert cuda.log == []
    submit(calls, cuda, is_async=False)
    calls.fence()()
    assert cuda.log[-1] == "host waits for e1 on default"
    submit(calls, cuda, is_async=True)
    wait = calls.fence()
    wait()
    assert {line.split(" on ")[1] for line in cuda.log if line.startswith("host")} == {
        "default",
        "s1",
    }


@WAYS
@pytest.mark.parametrize("is_async", [False, True])
def test_nothing_after_the_end(cuda, is_async, way):
    calls = GpuCalls()
    calls.end(braid.InvalidArgument("was destroyed"))
    with pytest.raises(braid.InvalidArgument, match="destroyed"):
        way(calls, cuda, is_async=is_async).wait()
    assert cuda.log == []


def test_by_handle_a_synchronous_call_is_on_the_callers_stream(cuda):
    calls = GpuCalls()
    work = enqueue(calls, cuda, is_async=False)
    with cuda.stream(cuda.Stream(GPU)) as user:
        enqueue(calls, cuda, "next", is_async=False).wait()
    work.wait()
    default = cuda.current
    assert cuda.log == [f"call at {default.cuda_stream}", f"next at {user.cuda_stream}"]
    assert cuda.events == []
    assert not work.is_completed()
    default.finish()
    assert work.is_success()


def test_by_handle_an_asynchronous_call_lies_between_two_events(cuda):
    calls = GpuCalls()
    with cuda.stream(cuda.Stream(GPU)):
        work = enqueue(calls, cuda, is_async=True)
        assert cuda.current.name == "s1"  # nobody else's stream has changed
        handle = calls._streams[GPU].cuda_stream
        work.wait()
    assert cuda.log == [
        "e1 recorded on s1",
        "s2 waits for e1",
        f"call at {handle}",
        "e2 recorded on s2",
        "s1 waits for e2",
    ]
    cuda.log.clear()
    enqueue(calls, cuda, "next", is_async=True)
    assert cuda.log == [
        "e1 recorded on default",  # the same event again: what s2 waits for was fixed before
        "s2 waits for e1",
        f"next at {handle}",
        "e3 recorded on s2",  # another one: e2 is not done
    ]


@WAYS
def test_events_are_used_again_once_the_gpu_has_passed_them(cuda, way):
    calls = GpuCalls()
    works = [way(calls, cuda, is_async=True) for _ in range(2)]
    first = works[0]._event
    first.is_done = True
    later = way(calls, cuda, is_async=True)
    assert later._event is first
    first.is_done = False  # it is the later call's now
    cuda.log.clear()
    assert works[0].is_completed()
    works[0].wait()
    assert cuda.log == []  # nothing to wait for, least of all the later call
    assert not later.is_completed()
    works[1].wait()
    assert len(cuda.log) == 1
    made = len(cuda.events)
    for _ in range(100):
        for event in cuda.events:
            event.is_done = True
        way(calls, cuda, is_async=True)
    assert len(cuda.events) - made <= 1


@WAYS
def test_captured_events_are_not_used_again(cuda, way):
    calls = GpuCalls()
    way(calls, cuda, is_async=True)._event.is_done = True
    way(calls, cuda, is_async=True)  # the first event is free now
    cuda.is_capturing = True
    captured = way(calls, cuda, is_async=True)
    cuda.is_capturing = False
    captured._event.is_done = True
    other = way(calls, cuda, is_async=True)
    assert captured._event is not other._event
    assert captured._event.name not in cuda.asked


def test_the_capture_that_counts_is_of_the_tensors_gpu(cuda):
    """torch asks the current device's stream."""
    seen = []
    cuda.is_current_stream_capturing = lambda: seen.append(cuda.chosen)
    with cuda.device(torch.device("cuda", 1)):
        enqueue(GpuCalls(), cuda, is_async=True)
        assert cuda.chosen == torch.device("cuda", 1)
    assert seen == [GPU]


def test_streams_are_known_by_their_handles(cuda):
    caller, asked = CallerStream(GPU), []
    ask = cuda.current_stream
    cuda.current_stream = lambda device: asked.append(device) or ask(device)
    assert [caller(), caller()] == [(cuda.current, cuda.current.cuda_stream)] * 2
    assert asked == [GPU]
    for _ in range(200):
        with cuda.stream(cuda.Stream(GPU)) as user:
            assert caller() == (user, user.cuda_stream)
    assert len(asked) == 201
    assert len(caller._known) <= 64
