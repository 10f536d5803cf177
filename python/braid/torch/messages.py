"""Tensors as point-to-point messages. Those on a GPU go through pinned host memory."""

from collections.abc import Callable
from typing import Any

import torch

from braid.torch.gpu_calls import refuse_capture
from braid.torch.post import Post
from braid.torch.receive import RecvWork, Request
from braid.torch.rows import as_bytes, as_row, device_of, is_row, put, row
from braid.torch.work import HostWork


def send(post: Post, tensor: torch.Tensor, target: int, tag: int) -> HostWork:
    """Sends the elements of `tensor`, which must not change until the work is done."""
    device = device_of("send", [tensor])
    name = f"send to rank {target} with tag {tag}"
    work = HostWork(name, [tensor], callbacks=post.callbacks)
    data = as_bytes(row(tensor))
    if device.type == "cuda":
        return post.send(_to_host(data), target, tag, work)
    return post.send(data.numpy, target, tag, work)


def _host_bytes(count: int, *, is_pinned: bool) -> torch.Tensor:
    """On the CPU whatever the program's default device is."""
    return torch.empty(count, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)


def _to_host(data: torch.Tensor) -> Callable[[], Any]:
    """Starts the copy; the function waits for it and gives the bytes."""
    refuse_capture("send")
    copy = _host_bytes(data.numel(), is_pinned=True)
    copy.copy_(data, non_blocking=True)
    event = torch.cuda.current_stream(data.device).record_event()

    def ready() -> Any:
        event.synchronize()
        return copy.numpy()

    return ready


def receive(post: Post, tensor: torch.Tensor, source: int | None, tag: int) -> HostWork:
    """Fills `tensor` with a message from `source`, or from any rank. It is there after wait(), and
    on the CPU once is_completed().
    """
    device = device_of("recv", [tensor])
    plain = tensor.detach()
    is_direct = device.type == "cpu" and is_row(plain)
    if is_direct:
        arrived = as_bytes(as_row(plain))
    else:
        refuse_capture("recv") if device.type == "cuda" else None
        count = plain.numel() * plain.element_size()
        arrived = _host_bytes(count, is_pinned=device.type == "cuda")

    def deliver() -> None:
        if not is_direct:
            with torch.inference_mode():
                _fill(plain, arrived)

    who = "any rank" if source is None else f"rank {source}"
    name = f"recv from {who} with tag {tag}"
    is_on_host = device.type == "cpu"
    work = RecvWork(name, post.limit_s, deliver, post.callbacks, is_on_host=is_on_host)
    work.result().append(tensor)
    try:
        post.receive(Request(source, tag, arrived.numpy(), work))
    except BaseException:  # Ctrl-C: nobody has the receive
        work.waits(False)
        raise
    return work


def _fill(tensor: torch.Tensor, data: torch.Tensor) -> None:
    elements = data.view(tensor.dtype)
    if tensor.is_cuda:
        tensor.copy_(elements.view(tensor.shape), non_blocking=True)
    else:
        put(tensor, elements)
