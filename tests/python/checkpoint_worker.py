"""A stand-in for a worker of checkpoint-engine's dialogue, which does as 0.4.2's does."""

import traceback

import torch
import zmq


def stand_in(context, path, device_id, *, run, post_hook=None):
    """The worker's side: what it receives, in which order, and what it answers to an error."""
    socket = context.socket(zmq.REP)
    socket.connect(path)
    is_released = False
    try:
        try:
            function, arguments = socket.recv_pyobj()
            assert device_id is None
            buffer = function(*arguments)
            assert buffer.dtype == torch.uint8
            socket.send(b"")
        except Exception:
            socket.send_string(traceback.format_exc())
            socket.recv()
            raise
        while True:
            payload = socket.recv_pyobj()
            if isinstance(payload, Exception):
                raise payload
            if is_released:
                assert payload is None
                if post_hook:
                    post_hook()
                socket.send(b"")
                return
            if payload is None:
                is_released, buffer = True, None
                socket.send(b"")
                continue
            try:
                run([(item["name"], tensor_at(buffer, item)) for item in payload])
                socket.send(b"")
            except Exception:
                socket.send_string(traceback.format_exc())
    finally:
        socket.close(0)


def tensor_at(buffer, item):
    assert isinstance(item["shape"], torch.Size)
    end = item["offset"] + item["dtype"].itemsize * item["shape"].numel()
    return buffer[item["offset"] : end].view(item["dtype"]).view(item["shape"])
