"""BraidGroup: a process group of torch.distributed whose collectives are braid's.

torch 2.11 lets Python write a whole ProcessGroup, not a backend inside one: C++ (DDP's reducer,
functional collectives) reaches the methods below through torch's own trampolines, Python calls
them directly. So one object serves both device types. The methods have torch's names and
arguments; they say which tensors a call reads and writes, and collectives.py does it. In layers:
BraidGroup > MovingGroup > ReducingGroup > CallingGroup > Answers.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend

from braid.torch.calling import listed
from braid.torch.checks import check_tag
from braid.torch.comms import Comms, check_options
from braid.torch.errors import InvalidArgument
from braid.torch.forms import also_named, asked
from braid.torch.meeting import Meeting
from braid.torch.messages import receive, send
from braid.torch.moving import MovingGroup
from braid.torch.profiles import shown
from braid.torch.work import seconds_of

_OTHERS_S = 30.0  # of monitored_barrier, when nobody says


class BraidGroup(MovingGroup):
    """Made by torch.distributed.init_process_group("braid") and new_group().

    Threads: any; but all ranks must make their calls of a group in one order. Errors are braid's
    (braid.Error) and show when the Work is waited for; an argument that this rank can see to be
    wrong raises at once.
    """

    # ---- messages ----

    @also_named(dstRank="dst")
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        (tensor,) = listed(tensors)
        self._check_rank("send", "destination", dst)
        check_tag("send", tag)
        self._comms.check_process()
        with shown("send"):
            return self._noted(send(self._comms.post, tensor, dst, tag))

    @also_named(srcRank="src")
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        self._check_rank("recv", "source", src)
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, source: int | None, tag: int) -> Any:
        (tensor,) = listed(tensors)
        check_tag("recv", tag)
        self._comms.check_process()
        with shown("recv"):
            return self._noted(receive(self._comms.post, tensor, source, tag))

    # ---- barriers ----

    @also_named(timeout="opts")
    def barrier(self, opts: Any = None) -> Any:
        said = asked("barrier", opts)
        self._calls += 1
        limit_s = seconds_of(said.timeout)
        with shown("barrier"):
            return self._noted(self._comms.barrier(is_async=said.is_async, limit_s=limit_s))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier through the store; Timeout on rank 0 names every rank that did not come. After
        one that failed the next call is a barrier like any: ranks meet whichever of their calls
        they are in.
        """
        del wait_all_ranks  # all missing ranks are named always
        self._comms.monitored_barrier(seconds_of(timeout) or _OTHERS_S)

    # ---- timeout, and the end ----

    @property
    def options(self) -> Any:
        """As torch's own backends have them: what new_group() would be told."""
        timeout = timedelta(seconds=self._comms.limit_s or self._comms.meeting.timeout_s)
        return Backend.Options("braid", timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """For calls on host memory from now on, and for comms that are not made yet."""
        self._comms.limit_s = self._comms.meeting.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leaves when what was submitted is done."""
        self._comms.shutdown()

    def abort(self) -> None:
        """Leaves now; calls that wait, on any rank, raise."""
        self._comms.abort("aborted the group")


def make_group(options: Any, backend_options: Any) -> BraidGroup:
    """For torch.distributed: `options` are torch's, `backend_options` what the user gave as
    pg_options: a mapping of options of braid.init, or None.
    """
    if backend_options is not None and not isinstance(backend_options, Mapping):
        raise InvalidArgument(
            "init_process_group: argument pg_options: asked for a mapping of options of braid.init"
            f" or None, found {type(backend_options).__name__}"
        )
    check_options(backend_options or {})
    meeting = Meeting(
        options.store,
        options.group_id,
        options.group_rank,
        options.group_size,
        options.timeout.total_seconds(),
    )
    # As Gloo does, and for its sake: in "cpu:gloo,cuda:braid" torch drops the Gloo that it has just
    # made when we return, and a rank that still connects to this one would fail.
    meeting.gather(lambda: None)
    return BraidGroup(Comms(meeting, backend_options or {}), options.store)
