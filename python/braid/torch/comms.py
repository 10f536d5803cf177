"""What one group calls with: its comms, made at the first call that needs one, and its end.

A group ends in one of three ways:
  shutdown()   what was submitted is done first; the others are waited for a moment
  abort()      at once, from any thread, also while a call waits; the other ranks are told
  exit         of the process: shutdown(), or abort() when an exception ends the program, so that
               ranks that wait for this one learn it and the process itself can go
"""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.distributed_c10d import default_pg_timeout

import braid
from braid.comm import Comm
from braid.errors import Error
from braid.joining import Identity
from braid.split import bound_here
from braid.torch.callbacks import Callbacks
from braid.torch.collectives import Call
from braid.torch.errors import InvalidArgument, PeerLost, Unsupported, torch_errors
from braid.torch.gpu_calls import GpuCalls, refuse_capture
from braid.torch.host_calls import HostCalls
from braid.torch.meeting import Meeting
from braid.torch.monitored import MonitoredBarrier
from braid.torch.plain_calls import PlainCalls, plain_calls
from braid.torch.post import Post
from braid.torch.rows import device_of
from braid.torch.work import GpuWork, HostWork

Body = Callable[[Call], None]
Tensors = Sequence[torch.Tensor]

_UNSEEN = {"trace": "", "flight_record": "", "metrics_port": 0}  # of a comm that only checks
_END_S = 5.0  # for a call to notice that its comm was aborted, and for callbacks to end

_living: "weakref.WeakSet[Comms]" = weakref.WeakSet()


def check_options(options: Mapping[str, Any]) -> None:
    """Names and values of a group's pg_options, before anybody waits for its ranks: a comm of one
    rank looks at them as the group's comms will.
    """
    tokens = [v for n, v in options.items() if isinstance(n, str) and n.lower() == "job_token"]
    if any(token is not None for token in tokens):
        raise InvalidArgument(
            "pg_options: asked for a job_token, which groups make of the job's own: set"
            " BRAID_JOB_TOKEN to the same text for all ranks"
        )
    for name in options:
        if not isinstance(name, str):
            raise InvalidArgument(f"pg_options: asked for names of options, found {name!r:.80}")
    if options:
        with torch_errors():
            braid.join(Identity(0, 1), **{**options, **_UNSEEN}).close()


class Comms:
    """The calls of one group. Any thread; calls of all ranks must come in one order."""

    def __init__(self, meeting: Meeting, options: Mapping[str, Any]) -> None:
        self.meeting = meeting
        self.limit_s: float | None = None
        """How long a host call may take, where that is not the group's timeout."""
        self._options = dict(options)
        self._made: dict[str, Comm] = {}
        self._unmade: dict[str, Error] = {}  # why there is none, and never will be
        # One lock each: a rank may begin with the one while another begins with the other.
        self._making = {"cpu": threading.Lock(), "cuda": threading.Lock()}
        self._ended: BaseException | None = None
        self._callbacks = Callbacks(f"braid {meeting.name}")
        self._host = HostCalls(f"braid {meeting.name}")
        self._gpu = GpuCalls()
        self._monitored = MonitoredBarrier(meeting)
        self.plain: PlainCalls | None = None
        """The short way of calls on the GPU, once one was made the long way."""
        self.post = Post(meeting, self._look, self._callbacks)
        self._process_id = os.getpid()
        _living.add(self)

    # ---- calls ----

    def run(
        self,
        name: str,
        tensors: Tensors,
        outputs: Tensors,
        body: Body,
        *,
        is_async: bool,
        limit_s: float | None = None,
    ) -> HostWork | GpuWork:
        """Runs body(call) on the memory that `tensors` are in, after what was run there before."""
        self.check_process()
        device = device_of(name, tensors)
        if device.type == "cpu":
            return self.run_on_host(name, outputs, body, is_async=is_async, limit_s=limit_s)
        work = self._gpu.submit(
            name,
            device,
            tensors,
            outputs,
            lambda: body(Call(self._comm("cuda"))),
            is_async=is_async,
        )
        if self.plain is None and self._ended is None and (comm := self._made.get("cuda")):
            self.plain = plain_calls(comm, device, self._gpu)
        return work

    def run_on_host(
        self,
        name: str,
        outputs: Tensors,
        body: Body,
        *,
        is_async: bool,
        limit_s: float | None = None,
    ) -> HostWork:
        """The same for a call that has no tensors to say where."""
        limit_s = limit_s or self.limit_s
        full_name = f"{name} of group {self.meeting.name}"
        work = HostWork(full_name, outputs, limit_s, self._callbacks)
        # With a limit of its own the caller must be free to stop waiting.
        is_async = is_async or limit_s is not None
        return self._host.submit(work, lambda: body(Call(self._comm("cpu"))), is_async=is_async)

    def barrier(self, *, is_async: bool, limit_s: float | None) -> HostWork:
        """All ranks are here, and so is what this rank's GPU was given before."""
        self.check_process()
        fence = self._gpu.fence()

        def body(call: Call) -> None:
            fence()
            call.comm.barrier()
            self._raise_gpu_failure()

        return self.run_on_host("barrier", (), body, is_async=is_async, limit_s=limit_s)

    def monitored_barrier(self, timeout_s: float) -> None:
        """A barrier through the store, which works when nothing else does."""
        self.check_process()
        self._check()
        self._monitored.pass_it(self._check, timeout_s)

    def _raise_gpu_failure(self) -> None:
        comm = self._made.get("cuda")
        gpu = comm.health().get("gpu", {"ok": True}) if comm is not None else {"ok": True}
        if not gpu["ok"]:
            raise PeerLost(f"group {self.meeting.name}: a call on the GPU failed: {gpu['why']}")

    def _comm(self, kind: str) -> Comm:
        with self._making[kind]:
            self._check()
            if kind in self._unmade:
                raise self._unmade[kind]
            if kind not in self._made:
                if kind == "cuda":
                    refuse_capture("the first call of a group on a GPU")
                comm = self._make_once(kind)
                if self._ended is not None:  # aborted meanwhile
                    comm._core.close(say_farewell=False)
                self._check()
                self._made[kind] = comm
            return self._made[kind]

    def _make_once(self, kind: str) -> Comm:
        """There is no second try. A rank that came late would be in its first call, where one that
        gave that up is in its second, and they would take the two for one.
        """
        try:
            return self._make(kind)
        except BaseException as error:
            is_fault = isinstance(error, Exception)
            why = f"an earlier call {f'failed: {error}' if is_fault else 'was interrupted'}"
            failure = type(error) if isinstance(error, Error) else PeerLost
            self._unmade[kind] = failure(f"group {self.meeting.name}: {why}")
            self.meeting.give_up(kind, f"failed: {error}" if is_fault else "was interrupted")
            raise

    def _make(self, kind: str) -> Comm:
        if kind == "cuda" and self.meeting.size > 1 and not self.meeting.is_one_host():
            raise Unsupported(
                f"group {self.meeting.name}: asked for a call on GPUs of several hosts; braid joins"
                " those of one: make a group per host, or one with backend='nccl'"
            )
        limit_s = self._timeout()
        identity = self.meeting.identity(kind, self._check, waits=limit_s is not None)
        options = {"timeout": limit_s, **self._options}
        options = bound_here(options, identity.store_address)
        if identity.size > 1:
            options["job_token"] = self.meeting.secret(kind)
        comm = braid.join(identity, **options)
        comm._core.call_it(f"{self.meeting.name}:{kind}")
        return comm

    def _timeout(self) -> float | None:
        """The group's deadline; BRAID_TIMEOUT's (None) where torch was given none."""
        is_default = self.meeting.timeout_s == default_pg_timeout.total_seconds()
        return None if is_default and os.environ.get("BRAID_TIMEOUT") else self.meeting.timeout_s

    # ---- health ----

    def check_process(self) -> None:
        """InvalidArgument in a fork: it has no threads of the group's, so nobody would end a call
        there, and its peers are this process's.
        """
        if self._process_id != os.getpid():
            raise InvalidArgument(
                f"group {self.meeting.name} was made by process {self._process_id} and cannot be"
                f" used in its fork {os.getpid()}"
            )

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _look(self) -> None:
        """Raises when the group has ended, or one of its comms has lost a rank."""
        self._check()
        for comm in list(self._made.values()):
            health = comm.health()
            if not health["ok"]:
                raise PeerLost(f"group {self.meeting.name}: {health['why']}")

    # ---- the end ----

    def shutdown(self) -> None:
        """Leaves when what was submitted is done. Twice is fine."""
        if self._ended is not None or self._process_id != os.getpid():
            return
        why = InvalidArgument(f"group {self.meeting.name} was destroyed")
        self.plain = None
        self._gpu.end(why)
        if self._made.get("cuda") is not None:
            self._gpu.fence()()
        self._host.finish(why)
        self.post.close(why, is_orderly=True)
        self._ended = why
        self.meeting.leave("has left")
        with torch_errors():
            for kind in sorted(self._made):
                self._made.pop(kind).close()
        self._callbacks.finish(_END_S)

    def abort(self, reason: str) -> None:
        """Leaves now: calls that wait, here and on the other ranks, raise. Twice is fine."""
        if self._ended is not None or self._process_id != os.getpid():
            return
        self._ended = PeerLost(f"group {self.meeting.name}: rank {self.meeting.rank} {reason}")
        self.plain = None
        self._gpu.end(self._ended)
        self._host.give_up(self._ended)
        self.post.close(self._ended, is_orderly=False)
        for comm in list(self._made.values()):
            comm.abort(reason)
        self.meeting.leave(f"failed: {reason}")
        # A thread that is left in a call when Python ends takes the process down with it.
        self._host.join(_END_S)
        while self._made:
            self._made.popitem()[1]._core.close(say_farewell=False)
        self._callbacks.finish(_END_S)


def _leave_all() -> None:
    """At exit. A program that ends by an exception has printed it, and Python noted that."""
    has_failed = getattr(sys, "last_value", None) is not None
    for comms in sorted(_living, key=lambda each: each.meeting.name):
        try:
            comms.abort("ended by an exception") if has_failed else comms.shutdown()
        except Error as error:  # nobody is left to handle it
            print(f"braid: leaving group {comms.meeting.name}: {error}", file=sys.stderr)  # noqa: T201


atexit.register(_leave_all)
