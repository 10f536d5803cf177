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
from braid.torch.gpu_calls import GpuCalls, refuse_capture


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    return fake


def submit(calls, cuda, name="call", *, is_async, tensors=(), fails=False):
    def body():
        cuda.log.append(f"{name} on {cuda.current.name}")
        if fails:
            raise braid.PeerLost("rank 3 died")

    return calls.submit(name, GPU, tensors, tensors, body, is_async=is_async)


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


def test_tensors_are_held_until_somebody_waited_or_the_stream_has_passed(cuda):
    calls = GpuCalls()

    def alive(tensor):
        gc.collect()
        return tensor() is not None

    first, second = torch.ones(3), torch.ones(3)
    seen = [weakref.ref(first), weakref.ref(second)]
    works = [submit(calls, cuda, is_async=True, tensors=[t]) for t in (first, second)]
    for work in works:
        work.result().clear()  # the work's own list of results is not what is asked about
    del first, second
    assert [alive(each) for each in seen] == [True, True]
    works[1].wait()
    assert [alive(each) for each in seen] == [True, False]
    cuda.events[0].is_done = True
    del works, work
    submit(calls, cuda, is_async=True)  # the next call looks
    assert [alive(each) for each in seen] == [False, False]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_shows_at_wait_and_in_the_future(cuda, is_async):
    work = submit(GpuCalls(), cuda, is_async=is_async, fails=True)
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


def test_nothing_after_the_end(cuda):
    calls = GpuCalls()
    calls.end(braid.InvalidArgument("was destroyed"))
    with pytest.raises(braid.InvalidArgument, match="destroyed"):
        submit(calls, cuda, is_async=True).wait()
    assert cuda.log == []
