"""The communicator as users see it: its life, its facts, and what it tells. What it does is in
collectives.py, messages.py and objects.py, what a rank joins with in joining.py; the bytes are
moved by braid._braid.
"""

import json
import pickle
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, SupportsIndex, TypeVar

from braid import _braid
from braid.arguments import Operation, checked_number
from braid.arrays import Array
from braid.errors import InvalidArgument
from braid.joining import Identity, as_variables
from braid.objects import Objects
from braid.progress import Progress, choose
from braid.split import bound_here, choose_part, fields_of, own_address, part_of

T = TypeVar("T")

_WHOLE = 65536  # plan::kWhole: shares are fixed point


@dataclass(frozen=True)
class Link:
    """A physical channel that all ranks have."""

    name: str
    kind: str
    rate_gbps: float
    """GB/s = 1e9 bytes per second, per rank and direction; 0 when not known."""
    latency_ns: int
    source: str
    """Where the rate comes from: assumed, specified, measured or paced."""
    can_multicast: bool
    state: str = "up"
    """up or off, for a GPU's link."""
    how: str = ""
    """The way bytes go over a GPU's link, or why it is off."""


@dataclass(frozen=True)
class Explanation:
    """A plan: str() is for people, .json for programs."""

    text: str
    json: dict[str, Any]

    def __str__(self) -> str:
        return self.text


class Comm(Objects):
    """A group of ranks and the links between them. Made by braid.init().

    Collectives (all_gather, all_reduce, reduce_scatter, all_to_all, broadcast, reduce, gather,
    scatter, barrier, broadcast_object, all_gather_object, split, register): all ranks make the
    same calls in the same order with the same shapes, dtypes and options. A disagreement raises
    InvalidArgument on every rank, and nothing is written. Messages (send, recv, isend, irecv,
    send_object, recv_object) are between two ranks. One thread at a time; a second one gets
    InvalidArgument. All raise PeerLost and Timeout.

    With async_op=True a call returns a Work at once. On host memory a thread of the comm makes it,
    in order with all others: a call without async_op waits for those before it. What is wrong with
    its arguments may be raised by wait().

    On GPU tensors (DLPack) a call enqueues its work on `stream` and returns; a failure that shows
    later is raised by the next call. With async_op=True its Work is a point in that stream. One GPU
    per rank and comm.

    A copy (copy.deepcopy of what holds one) is the same comm. None can be pickled: it is this
    process's place among others.
    """

    def __init__(
        self,
        core: _braid.Comm,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(core)
        self._options = dict(options or {})
        self._store_address = core.store_address
        self._num_splits = 0
        # What others have for this comm's calls while it is open (braid.overlap), by their names,
        # and memory of theirs that peers write into. It goes when all have met at the end. After
        # any other end copies of a peer's may still be on their way there: then it stays.
        self._kept: dict[str, Any] = {}
        weakref.finalize(self, _leave, self._kept).atexit = False

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self._core.local_rank

    @property
    def links(self) -> list[Link]:
        """What bytes of host memory can travel over, in order of preference."""
        return [Link(**facts) for facts in json.loads(self._core.links_json(False))]

    @property
    def gpu_links(self) -> list[Link]:
        """What bytes of GPU tensors can travel over, once a call on GPU memory was made; none
        before. The first carries the beginnings of messages, the others their ends. Any thread.
        """
        return [Link(**facts) for facts in json.loads(self._core.links_json(True))]

    @property
    def fabric_hash(self) -> str:
        """Equal for equal fabrics; the key of the tuning cache."""
        return self._core.fabric_hash()

    def split(self, color: int | None, key: int = 0) -> "Comm | None":
        """A comm of its own for every color: this rank's, or None where color is None. Collective;
        so are the calls on each part, which has links, lanes and a deadline of its own, and options
        as this comm. Ranks there are in order of key, then of rank here.

        Close it as this one; either may be closed first. The parts find each other by a port on the
        host of their first rank.
        """
        one_host = self._core.is_one_host
        address = "127.0.0.1" if one_host else own_address(self._store_address)
        choices = self.all_gather_object(choose_part(self.rank, color, key, address))
        self._num_splits += 1
        if color is None:
            return None
        fields = fields_of(part_of(choices, self.rank), self.rank, self._num_splits)
        options = bound_here(self._options, fields["store_address"])
        return join(Identity(local_rank=self.local_rank, **fields), **options)

    def register(self, buf: T) -> T:
        """Shares a GPU buffer with all ranks: results of later calls that lie in it, at the same
        offset on every rank, are written there directly instead of through scratch. Collective;
        sizes must be equal. Keep `buf` alive until unregister() or close(). Returns it.

        Memory of cudaMalloc and of cuMemCreate (torch's expandable segments) can be shared, memory
        of cudaMallocAsync cannot: Unsupported, and calls on it go through scratch as before.

        When the comm fails on any rank (the deadline, a lost peer, calls that differ) copies that
        were enqueued already are not taken back: registered memory may be written to on every
        rank, also on one that has not come to the call, until all have closed the comm or ended.
        """
        self._calls.run("register", partial(_braid.register_memory, self._core, buf))
        return buf

    def unregister(self, buf: Array) -> None:
        """Takes register() back. Collective; waits for the comm's GPU work."""
        self._calls.run("unregister", partial(_braid.unregister_memory, self._core, buf))

    def health(self) -> dict[str, Any]:
        """{"ok", "rank", "size", "why", "links": [{"name", "state", "paced", "down_count",
        "resent_pieces", "why"}], "events"}, and once a call on GPU memory was made "gpu":
        {"ordinal", "ok", "why"; by the name of each of gpu_links {"on", "how", "sent_slots",
        "received_slots", "shares": {op: share}}; "balance": {"on", "calls", "samples", "windows",
        "moves", "trials", "shares": [{"op", "up_to_bytes", "tuned", "now", "moves"}]}}, where the
        balance's shares are those that moved since tuning. Any thread.
        """
        return dict(json.loads(self._core.health_json()))

    def explain(self, op: Operation, nbytes: int, on: Literal["cpu", "gpu"] = "cpu") -> Explanation:
        """The plan that the next call of `op` would use, on host memory or on this rank's GPU (once
        a call on GPU memory was made).

        nbytes as nccl-tests counts: the buffer for all_reduce and broadcast, the sum over ranks
        for the others. A reduce goes by the plan of all_reduce, gather by that of all_gather,
        scatter and messages by that of all_to_all.

        Waits for calls that were started, as a call does. InvalidArgument while another thread is
        in a call, and in a fork.
        """
        if not isinstance(on, str) or on not in ("cpu", "gpu"):
            raise InvalidArgument(f"explain: argument on: asked for 'cpu' or 'gpu', found {on!r}")
        if not isinstance(op, str):
            raise InvalidArgument(f"explain: argument op: asked for a name, found {op!r:.80}")
        nbytes = checked_number("explain", "nbytes", nbytes, 2**63 - 1)
        self._calls.await_all()
        if on == "gpu":
            words, plan = _braid.explain_gpu(self._core, op, nbytes)
            return Explanation(words, json.loads(plan))
        words = self._core.explain_words(op, nbytes)
        return Explanation(words, json.loads(self._core.explain_json(op, nbytes)))

    def last_call(self) -> dict[str, Any]:
        """What this rank's last collective on host memory that ended did: op, bytes, epoch,
        duration_ns and, per link, share, bytes and times. Messages leave it as it was. Any thread.
        """
        return self._core.last_call()

    def trace(self, path: str | PathLike[str]) -> None:
        """Writes a timeline of this comm's last calls, for ui.perfetto.dev. InvalidArgument unless
        BRAID_TRACE, BRAID_FLIGHT_RECORD or BRAID_TRACE_CALLS has calls kept. Any thread.
        """
        Path(path).write_text(self._core.trace_json())

    def flight_record(self, path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """This comm's last calls as torch's flight recorder has them. With `path` also pickled into
        that file; torch's fr_trace reads those whose name ends in the rank. InvalidArgument and
        threads as trace().
        """
        record: dict[str, Any] = json.loads(self._core.flight_json())
        if path is not None:
            Path(path).write_bytes(pickle.dumps(record, protocol=2))
        return record

    def balance_log(self) -> list[str]:
        """What the balancer did, newest last."""
        return self._core.balance_log()

    def abort(self, why: str) -> None:
        """Gives the comm up: calls that run, here in another thread or on other ranks, raise
        PeerLost with `why`, and so do later ones. Does not wait. Any thread; close() still frees
        what the comm holds.
        """
        self._core.abort(why)

    def close(self) -> None:
        """Leaves the group, once calls that were started are over. Closing twice is fine;
        collectives and explain() then raise InvalidArgument.
        """
        if not self._core.closed:
            self._calls.await_all()
            self._core.close()
            self._give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._core.closed:
            return
        if kind is not None and self._calls.are_under_way:
            self._core.abort(f"rank {self.rank} left with {kind.__name__}")
        self._calls.await_all()
        self._core.close(say_farewell=kind is None)  # peers of a rank that failed are told at once
        self._give_back()

    def _give_back(self) -> None:
        if self._core.has_ended_in_peace:
            self._kept.clear()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a braid.Comm cannot be pickled: it is this process's place among others. Save what"
            " has none, such as a model's state_dict(); another process calls braid.init() or"
            " braid.join() for its own"
        )

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else f"rank {self.rank} of {self.size}"
        return f"<braid.Comm {state}>"

    def _force_shares(self, shares: Sequence[float] | None) -> None:
        """For tests and benchmarks: cut every message by these shares, one per link, or None to
        plan again.

        Every rank must force the same. Shares are scaled to sum to 1. Waits for calls that were
        started.
        """
        self._calls.await_all()
        self._core.force_shares([] if shares is None else _fixed_point(shares))

    def _force_host_share(self, gpu: int, op: str, share: float | None) -> None:
        """For tests and benchmarks: the part of a GPU message that the host link carries, which the
        balancer then leaves alone; None: as tuned, and balanced again. Every rank must force the
        same, at the same place among its calls.
        """
        _braid.force_host_share(self._core, gpu, op, share)

    def _host_share(self, gpu: int, op: str) -> float | None:
        """For benchmarks: that part as tuning found it, of a long message. None when this build
        does not say.
        """
        ask = getattr(_braid, "host_share", None)
        return None if ask is None else float(ask(self._core, gpu, op))


_LEFT: list[dict[str, Any]] = []
"""What comms had that did not end in peace, for as long as the process lives."""


def _leave(kept: dict[str, Any]) -> None:
    if kept:
        _LEFT.append(kept)


def _fixed_point(shares: Sequence[float]) -> list[int]:
    """Shares in parts of 65536; what rounding leaves goes to the largest."""
    total = float(sum(shares))
    if total <= 0 or min(shares) < 0:
        raise InvalidArgument(
            f"_force_shares: asked for shares of 0 or more, not all 0, found {shares}"
        )
    parts = [int(_WHOLE * share / total) for share in shares]
    parts[parts.index(max(parts))] += _WHOLE - sum(parts)
    return parts


def init(
    *,
    timeout: float | str | None = None,
    links: str | Sequence[str] | None = None,
    tune: bool | str | None = None,
    progress: Progress | bool | Literal["auto"] = "auto",
    **options: object,
) -> Comm:
    """Joins the group that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT describe.
    Collective.

    torchrun, Slurm and `braid run` set these variables; without them the group is this process
    alone.

    timeout   deadline of every wait: seconds, or text such as "250ms"
    links     what to use: "auto", or names such as ["shm", "staged", "rdma"]
    tune      measure the links at start unless a cached result fits: True or "auto", False or
              "off", "force"
    progress  "auto" (a bar when standard error is a terminal), a bool, or a function of (done,
              what)
    options   any other BRAID_ variable, in lower case without the prefix: pace="shm=400MB/s",
              cell="64KiB"

    What is given here wins over the environment. Raises InvalidArgument (a wrong environment or
    option), Unavailable (no store, no common link), Timeout (names the missing ranks).
    """
    chosen = {"timeout": timeout, "links": links, "tune": tune, **options}
    return Comm(_braid.Comm(as_variables(chosen), choose(progress)), chosen)


def join(identity: Identity, *, progress: Progress | bool = False, **options: object) -> Comm:
    """Joins the group that `identity` describes, whatever the environment says. Collective.

    A process may be in several groups, each with an identity of its own. Options and errors are
    those of init(); job_token is the secret that the ranks of this group share.
    """
    core = _braid.Comm(as_variables(options), choose(progress), asdict(identity))
    return Comm(core, options)
