"""checkpoint-engine's dialogue, in place of its parameter server (written for its 0.4.2): weights
that braid brings are loaded by the worker code that inference servers already have for it (SGLang's
update_weights_from_ipc, vLLM with checkpoint_engine.worker.VllmColocateWorkerExtension).

    this process, beside the server (REQ, binds)      a worker of the server (REP, connects)
    (function, arguments)                     ->      calls it, and has a tensor of bytes
                                              <-      nothing, or what went wrong
    [{name, dtype, shape, offset}, ...]       ->      loads what lies there in those bytes
                                              <-      nothing, or what went wrong
    None                                      ->      lets the bytes go
                                              <-      nothing
    None                                      ->      finishes its load
                                              <-      nothing
    an exception, in place of any of these    ->      raises it, and has ended

Memory of a GPU is shared by CUDA IPC, the host's by a file without a name. It has two halves: one
is filled while the worker loads the other. What is sent is pickled, and the worker unpickles it: so
the socket is in a folder that other users cannot enter.
"""

import contextlib
import functools
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import zmq

from braid.closing import Closing
from braid.engine import values
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.weights.doors.tensors import tensor_of
from braid.weights.station import words_of
from braid.weights.stream import StreamReceiver

_ALIGN = 256
_QUICK_S = 5.0
"""For a worker that is told to end."""
_MOST_MS = 2**31 - 1
"""That ZeroMQ polls for."""
Ask = Callable[[dict[str, str]], object]
"""Makes a server's workers connect: is given {device: socket}, returns when they are through."""


class Dialogue(Closing):
    """With one worker. A context manager.

    receiver  has joined the trainer's StreamSender
    worker    by which name the server looks its socket up: a GPU's "GPU-" + UUID
    nbytes    of the shared memory; no tensor may be longer than half of it
    device    "cuda:0", ..., where the worker's memory is; "cpu" for a server without GPUs
    """

    def __init__(
        self, receiver: StreamReceiver, worker: str, nbytes: int, device: str = "cuda"
    ) -> None:
        self.worker = worker
        self._receiver = receiver
        self._shared = _OnHost(nbytes) if device == "cpu" else _OnDevice(nbytes, device)
        self._half = nbytes // 2 // _ALIGN * _ALIGN
        self._folder = tempfile.TemporaryDirectory(prefix="braid-")  # for its user alone
        self._context = zmq.Context()
        self.path = f"ipc://{self._folder.name}/worker"

    def update(self, version: int, timeout: float = 300.0) -> None:
        """One version, while the server is asked to take it. Cancelled: the worker's own words;
        Timeout: it did not come, or does not go on. What fails is told to trainer and worker.
        """
        limit = values.seconds(timeout, f"worker '{self.worker}': update")
        socket = self._context.socket(zmq.REQ)
        socket.linger = 0
        socket.bind(self.path)
        talk = _Talk(socket, self.worker, time.monotonic() + limit)
        try:
            talk.say(self._shared.handle())
            self._load(version, timeout, talk)
            talk.await_answer()
            for _ in range(2):
                talk.say(None)
                talk.await_answer()
        except BaseException as error:  # the worker's side waits without a deadline
            talk.end(words_of(error))
            raise
        finally:
            socket.close()

    def _load(self, version: int, timeout: float, talk: "_Talk") -> None:
        tensors = self._receiver.receive(version, timeout)
        try:
            self._load_each(tensors, talk)
        except BaseException as error:
            tensors.throw(error)  # so that the trainer is told

    def _load_each(self, tensors: Iterator[tuple[str, str, Any, Any]], talk: "_Talk") -> None:
        half, used = 0, 0
        told: list[dict[str, Any]] = []
        for name, dtype, shape, data in tensors:
            if data.size > self._half:
                raise InvalidArgument(
                    f"tensor '{name}' is of {data.size} bytes; half of the shared memory is "
                    f"{self._half}"
                )
            if used + data.size > self._half:
                self._hand_over(told, talk)
                half, used, told = 1 - half, 0, []
            offset = half * self._half + used
            self._shared.put(offset, data)
            about = tensor_of(dtype, (0,), data[:0])
            told.append({"name": name, "dtype": about.dtype, "shape": torch.Size(shape),
                         "offset": offset})  # fmt: skip
            used = (used + data.size + _ALIGN - 1) // _ALIGN * _ALIGN
        if told:
            self._hand_over(told, talk)

    def _hand_over(self, told: list[dict[str, Any]], talk: "_Talk") -> None:
        """When the worker is through with what it was told before: with the other half."""
        talk.await_answer()
        self._shared.settle()
        talk.say(told)

    def close(self) -> None:
        self._context.destroy(0)
        self._shared.close()
        self._folder.cleanup()


def update(dialogues: Sequence[Dialogue], version: int, ask: Ask, timeout: float = 300.0) -> None:
    """One version to all workers of a server, which `ask` asks once (vLLM: collective_rpc(
    "update_weights_from_ipc", args=(sockets,)); SGLang: its request of that name). Raises the first
    error of a worker, or else that of the server.
    """
    errors: list[BaseException] = []

    def one(dialogue: Dialogue) -> None:
        try:
            dialogue.update(version, timeout)
        except BaseException as error:
            errors.insert(0, error)

    def asked() -> None:
        try:
            ask({dialogue.worker: dialogue.path for dialogue in dialogues})
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=one, args=(dialogue,), daemon=True) for dialogue in dialogues
    ]
    for thread in threads:
        thread.start()
    server = threading.Thread(target=asked, daemon=True)
    server.start()
    for thread in threads:
        thread.join()
    server.join(min(timeout, threading.TIMEOUT_MAX) if not errors else _QUICK_S)
    if server.is_alive():
        errors.append(Timeout(f"the server has not come back from version {version}"))
    if errors:
        raise errors[0]


class _Talk:
    """Requests and answers, with one deadline."""

    def __init__(self, socket: Any, worker: str, until: float) -> None:
        self._socket = socket
        self._worker = worker
        self._until = until
        self._is_answered = True
        self._is_there = False

    def say(self, what: Any) -> None:
        if not self._socket.poll(self._left_ms(), zmq.POLLOUT):
            raise Timeout(f"worker '{self._worker}' has not connected")
        self._socket.send_pyobj(what)
        self._is_answered, self._is_there = False, True

    def await_answer(self) -> None:
        if self._is_answered:
            return
        if not self._socket.poll(self._left_ms()):
            raise Timeout(f"worker '{self._worker}' does not answer")
        answer = self._socket.recv()
        self._is_answered = True
        if answer:
            words = answer.decode(errors="replace").strip()
            raise Cancelled(f"worker '{self._worker}': {words.splitlines()[-1]}")

    def end(self, why: str) -> None:
        """Ends the worker's side, which waits for a word of ours after its own errors, too."""
        if not self._is_there:
            return
        self._until = time.monotonic() + _QUICK_S
        with contextlib.suppress(Error, zmq.ZMQError):
            self.await_answer()
        with contextlib.suppress(Error, zmq.ZMQError):
            self.say(RuntimeError(why))
            self._socket.linger = int(_QUICK_S * 1000)

    def _left_ms(self) -> int:
        return max(0, int(min((self._until - time.monotonic()) * 1000, _MOST_MS)))


class _OnHost:
    """Memory of a file without a name, which the worker opens by this process's number."""

    def __init__(self, nbytes: int) -> None:
        self._file = os.memfd_create("braid.weights")
        os.ftruncate(self._file, nbytes)
        self._map = mmap.mmap(self._file, nbytes)
        self._memory = np.frombuffer(self._map, np.uint8)

    def handle(self) -> tuple[Any, tuple[Any, ...]]:
        opened = functools.partial(torch.from_file, dtype=torch.uint8)
        return opened, (f"/proc/{os.getpid()}/fd/{self._file}", True, self._memory.size)

    def put(self, offset: int, data: Any) -> None:
        self._memory[offset : offset + data.size] = data

    def settle(self) -> None:
        """All of it is there."""

    def close(self) -> None:
        del self._memory
        self._map.close()
        os.close(self._file)


class _OnDevice:
    """Memory of a GPU, which the worker opens by CUDA IPC."""

    def __init__(self, nbytes: int, device: str) -> None:
        self._memory = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def handle(self) -> tuple[Any, tuple[Any, ...]]:
        from torch.multiprocessing.reductions import reduce_tensor

        return reduce_tensor(self._memory)

    def put(self, offset: int, data: Any) -> None:
        self._memory[offset : offset + data.size].copy_(torch.from_numpy(data))

    def settle(self) -> None:
        torch.cuda.synchronize(self._memory.device)

    def close(self) -> None:
        del self._memory
