"""The communicator as users see it: shapes in, shapes out; the bytes are moved by braid._braid.

Buffers are anything with the buffer protocol (NumPy arrays, bytearray, memoryview, array.array)
or DLPack (torch tensors on CPU or GPU), contiguous in C order. Results are of the same library as
the input: torch in, torch out; all else gives NumPy arrays. The GIL is released while a call
runs.
"""

import json
import operator
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import numpy as np

from braid import _braid, arrays
from braid.arrays import Array, Stream
from braid.errors import InvalidArgument
from braid.progress import Progress, choose

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


@dataclass(frozen=True)
class Identity:
    """Who a rank is, for programs that do not take it from a launcher's environment.

    Rank 0 listens at store_address on the first free port from store_port on (eight are tried). All
    ranks of one group give the same store_address, store_port and job_id; the secret that they
    share is the option job_token.
    """

    rank: int
    size: int
    local_rank: int = 0
    store_address: str = "127.0.0.1"
    store_port: int = 0
    """1 to 65535; not used by a group of one rank."""
    job_id: str = ""
    """A public name; a store refuses ranks that say another one."""

    def __post_init__(self) -> None:
        numbers = {"rank": self.rank, "size": self.size, "local_rank": self.local_rank}
        for name, value in {**numbers, "store_port": self.store_port}.items():
            most = 65535 if name == "store_port" else 2**31 - 1
            if not 0 <= operator.index(value) <= most:
                raise InvalidArgument(f"identity: {name}: asked for 0 to {most}, found {value}")


@dataclass(frozen=True)
class Explanation:
    """A plan: str() is for people, .json for programs."""

    text: str
    json: dict[str, Any]

    def __str__(self) -> str:
        return self.text


class Comm:
    """A group of ranks and the links between them. Made by braid.init().

    Every method from all_gather to barrier is collective: all ranks make the same calls in the
    same order with the same shapes, dtypes and options. A disagreement raises InvalidArgument on
    every rank, and nothing is written. One thread at a time; a second one gets InvalidArgument.
    All raise PeerLost and Timeout.

    On GPU tensors (DLPack) a call enqueues its work on `stream` and returns; a failure that shows
    later is raised by the next call. One GPU per rank and comm.
    """

    def __init__(self, core: _braid.Comm) -> None:
        self._core = core

    @property
    def rank(self) -> int:
        """This process's number, from 0 to size - 1."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._core.size

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self._core.local_rank

    @property
    def links(self) -> list[Link]:
        """What the bytes can travel over, in order of preference."""
        return [Link(**facts) for facts in self._core.links()]

    @property
    def fabric_hash(self) -> str:
        """Equal for equal fabrics; the key of the tuning cache."""
        return self._core.fabric_hash()

    def all_gather(self, send: Array, out: Array = None, *, stream: Stream = None) -> Array:
        """Every rank's `send`, one after the other along the first axis, on every rank.

        send [a, ...], result [size * a, ...]; a scalar counts as [1]. `out` may have any shape
        with as many elements; `send` may be this rank's part of `out`.
        """
        if out is None:
            rows = arrays.shape_of(send, "send")[0]
            out = arrays.empty_rows(send, self.size * rows, "send")
        _braid.all_gather(self._core, send, out, arrays.stream_of(send, stream))
        return out

    def all_reduce(
        self, buf: T, op: str = "sum", out: T | None = None, *, stream: Stream = None
    ) -> T:
        """The reduction of every rank's `buf`, in `buf` itself unless `out` is given. Returns
        where it is.

        op: sum, prod, min, max, avg. Floats are summed in fp32 (fp64 for fp64) in rank order and
        rounded once: every rank has the same bits, whatever the links and shares.
        """
        target = buf if out is None else out
        _braid.all_reduce(self._core, buf, target, op, arrays.stream_of(buf, stream))
        return target

    def reduce_scatter(
        self, send: Array, op: str = "sum", out: Array = None, *, stream: Stream = None
    ) -> Array:
        """Block `rank` of the reduction of every rank's `send`.

        send [size * a, ...], result [a, ...]. Numbers as all_reduce. `out` may be this rank's
        block of `send`.
        """
        if out is None:
            rows = arrays.split_rows(arrays.shape_of(send, "send")[0], self.size, "reduce_scatter")
            out = arrays.empty_rows(send, rows, "send")
        _braid.reduce_scatter(self._core, send, out, op, arrays.stream_of(send, stream))
        return out

    def all_to_all(
        self,
        send: Array,
        out: Array = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
    ) -> Array:
        """Block j of `send` goes to rank j; block i of the result came from rank i.

        Even: send [size * a, ...], result [size * a, ...].
        Uneven: send_counts[j] rows (steps along the first axis) go to rank j, recv_counts[i] rows
        come from rank i; send [sum(send_counts), ...], result [sum(recv_counts), ...]. Without
        recv_counts the ranks tell each other theirs first, which costs one small all_to_all over
        the host. On GPUs counts that do not fit are trouble for all ranks, and end the comm.
        """
        if send_counts is not None:
            return self._all_to_all_uneven(send, out, send_counts, recv_counts, stream)
        if recv_counts is not None:
            raise InvalidArgument("all_to_all: recv_counts is given, send_counts is not")
        rows = arrays.shape_of(send, "send")[0]
        arrays.split_rows(rows, self.size, "all_to_all")
        if out is None:
            out = arrays.empty_rows(send, rows, "send")
        _braid.all_to_all(self._core, send, out, arrays.stream_of(send, stream))
        return out

    def _all_to_all_uneven(
        self,
        send: Array,
        out: Array,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None,
        stream: Stream,
    ) -> Array:
        shape = arrays.shape_of(send, "send")
        sent = self._counts("send_counts", send_counts)
        if sum(sent) != shape[0]:
            raise InvalidArgument(
                f"all_to_all: argument send_counts: asked for counts that sum to {shape[0]}, the"
                " rows of send,"
                f" found {sent}"
            )
        if recv_counts is None:
            recv_counts = self.all_to_all(np.array(sent, dtype=np.int64)).tolist()
        received = self._counts("recv_counts", recv_counts)
        if out is None:
            out = arrays.empty_rows(send, sum(received), "send")
        row = arrays.row_elements(shape)
        _braid.all_to_all_v(
            self._core,
            send,
            [n * row for n in sent],
            out,
            [n * row for n in received],
            arrays.stream_of(send, stream),
        )
        return out

    def _counts(self, name: str, counts: Sequence[int]) -> list[int]:
        try:
            plain = [operator.index(n) for n in counts]
        except TypeError:
            raise InvalidArgument(
                f"all_to_all: argument {name}: asked for whole numbers, found {counts!r}"
            ) from None
        if len(plain) != self.size or min(plain) < 0:
            raise InvalidArgument(
                f"all_to_all: argument {name}: asked for {self.size} counts of 0 or more,"
                f" found {plain}"
            )
        return plain

    def broadcast(self, buf: T, root: int = 0, *, stream: Stream = None) -> T:
        """Root's `buf` in every rank's `buf`, which is returned.

        Same shape and dtype everywhere.
        """
        _braid.broadcast(self._core, buf, root, arrays.stream_of(buf, stream))
        return buf

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        _braid.barrier(self._core)

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
        _braid.register_memory(self._core, buf)
        return buf

    def unregister(self, buf: Array) -> None:
        """Takes register() back. Collective; waits for the comm's GPU work."""
        _braid.unregister_memory(self._core, buf)

    def health(self) -> dict[str, Any]:
        """{"ok", "rank", "size", "why", "links": [{"name", "state", "paced", "down_count",
        "resent_pieces", "why"}], "events"}, and once a call on GPU memory was made "gpu":
        {"ordinal", "ok", "why", "rdma": {"on", "how", "sent_slots", "received_slots",
        "shares": {op: share}}, "balance": {"on", "calls", "samples", "windows", "moves", "trials",
        "shares": [{"op", "up_to_bytes", "tuned", "now", "moves"}]}}, where the
        balance's shares are the PCIe link's that moved since tuning. Any thread.
        """
        return dict(json.loads(self._core.health_json()))

    def explain(self, op: str, nbytes: int, on: Literal["cpu", "gpu"] = "cpu") -> Explanation:
        """The plan that the next call of `op` would use, on host memory or on this rank's GPU (once
        a call on GPU memory was made).

        nbytes as nccl-tests counts: the buffer for all_reduce and broadcast, the sum over ranks
        for the others.
        """
        if on not in ("cpu", "gpu"):
            raise InvalidArgument(f"explain: argument on: asked for 'cpu' or 'gpu', found {on!r}")
        if nbytes < 0:
            raise InvalidArgument(f"explain: argument nbytes: asked for 0 or more, found {nbytes}")
        if on == "gpu":
            words, plan = _braid.explain_gpu(self._core, op, nbytes)
            return Explanation(words, json.loads(plan))
        words = self._core.explain_words(op, nbytes)
        return Explanation(words, json.loads(self._core.explain_json(op, nbytes)))

    def last_call(self) -> dict[str, Any]:
        """What this rank's last collective did: op, bytes, epoch, duration_ns and, per link,
        share, bytes and times.
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
        """Leaves the group. Closing twice is fine; collectives and explain() then raise
        InvalidArgument.
        """
        if not self._core.closed:
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._core.closed:  # peers of a rank that failed are told at once
            self._core.close(say_farewell=kind is None)

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else f"rank {self.rank} of {self.size}"
        return f"<braid.Comm {state}>"

    def _force_shares(self, shares: Sequence[float] | None) -> None:
        """For tests and benchmarks: cut every message by these shares, one per link, or None to
        plan again.

        Every rank must force the same. Shares are scaled to sum to 1.
        """
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


def _text(value: object) -> str:
    """An option as its BRAID_ variable would spell it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(str(item) for item in value)
    return str(value)


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
    return Comm(_braid.Comm(_texts(chosen), choose(progress)))


def join(identity: Identity, *, progress: Progress | bool = False, **options: object) -> Comm:
    """Joins the group that `identity` describes, whatever the environment says. Collective.

    A process may be in several groups, each with an identity of its own. Options and errors are
    those of init(); job_token is the secret that the ranks of this group share.
    """
    return Comm(_braid.Comm(_texts(options), choose(progress), asdict(identity)))


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Options as BRAID_ variables; None means "as the environment says"."""
    texts = {}
    for name, value in options.items():
        if name == "timeout" and isinstance(value, int | float):
            value = f"{value:.9f}s"
        elif name == "tune" and isinstance(value, bool):
            value = "auto" if value else "off"
        if value is not None:
            texts[f"BRAID_{name.upper()}"] = _text(value)
    return texts
