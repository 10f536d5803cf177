"""Types of the C++ core. The package braid wraps it; users do not import this."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from braid.errors import Error

Array: TypeAlias = Any

__version__: str
build_type: str

def options() -> list[tuple[str, str, str, str, bool]]: ...
def reduce_isa() -> str: ...
def user_secret() -> str: ...

class Comm:
    def __init__(
        self,
        options: dict[str, str],
        progress: Callable[[float, str], None] | None,
        identity: Mapping[str, Any] | None = None,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self, say_farewell: bool = True) -> None: ...
    def abort(self, why: str) -> None: ...
    def links_json(self, on_gpu: bool) -> str: ...
    def fabric_hash(self) -> str: ...
    def health_json(self) -> str: ...
    def balance_log(self) -> list[str]: ...
    def explain_words(self, op: str, nbytes: int, /) -> str: ...
    def explain_json(self, op: str, nbytes: int, /) -> str: ...
    def trace_json(self) -> str: ...
    def flight_json(self) -> str: ...
    def call_it(self, name: str) -> None: ...
    def last_call(self) -> dict[str, Any]: ...
    def force_shares(self, shares: Sequence[int]) -> None: ...

def all_gather(comm: Comm, send: Array, out: Array, stream: int = 0, /) -> None: ...
def all_reduce(comm: Comm, send: Array, out: Array, op: str, stream: int = 0, /) -> None: ...
def reduce_scatter(comm: Comm, send: Array, out: Array, op: str, stream: int = 0, /) -> None: ...
def all_to_all(comm: Comm, send: Array, out: Array, stream: int = 0, /) -> None: ...
def all_to_all_v(
    comm: Comm,
    send: Array,
    send_counts: Sequence[int],
    out: Array,
    recv_counts: Sequence[int],
    stream: int = 0,
    /,
) -> None: ...
def broadcast(comm: Comm, buf: Array, root: int, stream: int = 0, /) -> None: ...
def barrier(comm: Comm, /) -> None: ...
def reduce(comm: Comm, send: Array, out: Array, op: str, root: int, stream: int = 0, /) -> None: ...
def gather(comm: Comm, send: Array, out: Array, root: int, stream: int = 0, /) -> None: ...
def scatter(comm: Comm, send: Array, out: Array, root: int, stream: int = 0, /) -> None: ...
def all_gather_v(
    comm: Comm, send: Array, out: Array, counts: Sequence[int], stream: int = 0, /
) -> None: ...
def reduce_scatter_v(
    comm: Comm, send: Array, out: Array, op: str, counts: Sequence[int], stream: int = 0, /
) -> None: ...
def send(comm: Comm, buf: Array, peer: int, stream: int = 0, /) -> None: ...
def recv(comm: Comm, buf: Array, peer: int, stream: int = 0, /) -> None: ...

# Messages that are under way together. Holds the comm from its making to close(), in one thread.
class Exchange:
    def __init__(self, comm: Comm) -> None: ...
    @property
    def has_open(self) -> bool: ...
    def post(self, buf: Array, is_send: bool, peer: int, stream: int = 0, /) -> int: ...
    def step(self) -> list[tuple[int, Exception | None]]: ...
    def poke(self) -> None: ...
    def close(self) -> None: ...

class StreamMark:
    def __init__(self, gpu: int, stream: int) -> None: ...
    def is_done(self) -> bool: ...

def check_gpu(comm: Comm, gpu: int, /) -> None: ...

# The same on GPU memory by addresses: counts of a block, codes of dtype_code() and redop_code().
def dtype_code(name: str, /) -> int: ...
def redop_code(name: str, /) -> int: ...
def all_gather_on(
    comm: Comm, gpu: int, send: int, recv: int, count: int, dtype: int, stream: int, /
) -> None: ...
def all_reduce_on(
    comm: Comm, gpu: int, send: int, recv: int, count: int, dtype: int, op: int, stream: int, /
) -> None: ...
def reduce_scatter_on(
    comm: Comm, gpu: int, send: int, recv: int, count: int, dtype: int, op: int, stream: int, /
) -> None: ...
def all_to_all_on(
    comm: Comm, gpu: int, send: int, recv: int, count: int, dtype: int, stream: int, /
) -> None: ...
def broadcast_on(
    comm: Comm, gpu: int, buf: int, count: int, dtype: int, root: int, stream: int, /
) -> None: ...
def register_memory(comm: Comm, buf: Array, /) -> None: ...
def unregister_memory(comm: Comm, buf: Array, /) -> None: ...
def force_host_share(comm: Comm, gpu: int, op: str, share: float | None, /) -> None: ...
def explain_gpu(comm: Comm, op: str, nbytes: int, /) -> tuple[str, str]: ...
def host_share(comm: Comm, gpu: int, op: str, /) -> float: ...

class engine:  # noqa: N801 - a module of the compiled one
    """The transfer engine: what braid.engine wraps. Times in ns; 0: the engine's default."""

    class Ticket:
        @property
        def what(self) -> str: ...
        def is_done(self) -> bool: ...
        def wait(self, timeout_ns: int) -> bool: ...
        def then(self, callback: Callable[[Any], object], /) -> bool: ...
        def raise_if_failed(self) -> None: ...
        def error(self) -> Error | None: ...

    class Region:
        @property
        def id(self) -> int: ...
        @property
        def nbytes(self) -> int: ...
        @property
        def address(self) -> int: ...
        @property
        def device(self) -> int: ...

    class Remote:
        @property
        def id(self) -> int: ...
        @property
        def nbytes(self) -> int: ...
        @property
        def device(self) -> int: ...
        @property
        def owner(self) -> engine.Peer: ...

    class Peer:
        @property
        def name(self) -> str: ...
        @property
        def incarnation(self) -> bytes: ...
        @property
        def endpoints(self) -> list[str]: ...

    class Watch:
        value: int
        @property
        def address(self) -> int: ...
        @property
        def gpu_address(self) -> int: ...
        def close(self) -> None: ...

    class Engine:
        def __init__(
            self,
            name: str,
            hosts: Sequence[str],
            port: int,
            token: str,
            nics: Sequence[tuple[str, str]],
            device: int,
            uses_local: bool,
            lease_ns: int,
            timeout_ns: int,
            most_transfers: int,
            host_id: str,
            /,
        ) -> None: ...
        @property
        def is_closed(self) -> bool: ...
        def close(self) -> None: ...
        def leave_to_parent(self) -> None: ...
        def address(self) -> bytes: ...
        def register_buffer(self, buffer: Array, /) -> engine.Region: ...
        def register_at(self, address: int, nbytes: int, gpu: int, /) -> engine.Region: ...
        def unregister(self, region: engine.Region, timeout_ns: int, /) -> None: ...
        def descriptor(self, region: engine.Region, /) -> bytes: ...
        def import_region(self, data: bytes, /) -> engine.Remote: ...
        def import_peer(self, data: bytes, /) -> engine.Peer: ...
        def write(
            self,
            source: engine.Region,
            source_offset: int,
            target: engine.Remote,
            target_offset: int,
            nbytes: int,
            imm: int | None,
            notification: bytes,
            timeout_ns: int,
            callback: Callable[[Any], object] | None,
            /,
        ) -> engine.Ticket: ...
        def read(
            self,
            target: engine.Region,
            target_offset: int,
            source: engine.Remote,
            source_offset: int,
            nbytes: int,
            notification: bytes,
            timeout_ns: int,
            callback: Callable[[Any], object] | None,
            /,
        ) -> engine.Ticket: ...
        def pages(
            self,
            is_read: bool,
            local: engine.Region,
            remote: engine.Remote,
            page_bytes: int,
            source_ids: Array,
            target_ids: Array,
            source_stride: int,
            target_stride: int,
            source_offset: int,
            target_offset: int,
            imm: int | None,
            notification: bytes,
            timeout_ns: int,
            callback: Callable[[Any], object] | None,
            /,
        ) -> engine.Ticket: ...
        def scatter(
            self,
            source: engine.Region,
            parts: Sequence[tuple[engine.Remote, int, int, int]],
            imm: int | None,
            notification: bytes,
            timeout_ns: int,
            /,
        ) -> list[engine.Ticket]: ...
        def signal(
            self, peers: list[engine.Peer], imm: int, timeout_ns: int, /
        ) -> list[engine.Ticket]: ...
        def message(
            self,
            peer: engine.Peer,
            kind: str,
            data: bytes,
            imm: int | None,
            timeout_ns: int,
            callback: Callable[[Any], object] | None,
            /,
        ) -> engine.Ticket: ...
        def expect(
            self, imm: int, count: int, callback: Callable[[Any], object] | None, flag: Array, /
        ) -> engine.Ticket: ...
        def forget(self, imm: int, /) -> None: ...
        def count(self, imm: int, /) -> int: ...
        def receive(self, timeout_ns: int, /) -> tuple[bytes, str, bytes] | None: ...
        def take_notification(self, timeout_ns: int, /) -> tuple[bytes, str, bytes] | None: ...
        def tell(self, is_notification: bool, callback: Callable[[Any], object], /) -> bool: ...
        def watch(self, callback: Callable[[int, int], bool], /) -> engine.Watch: ...
        def cancel(self, ticket: engine.Ticket, /) -> None: ...
        def disconnect(self, peer: engine.Peer, /) -> None: ...
        def health(self) -> list[str]: ...
        def stats(self) -> dict[str, int]: ...

    @staticmethod
    def choose_hosts(has_token: bool, /) -> list[str]: ...
    @staticmethod
    def choose_nics(hosts: Sequence[str], uses_local: bool, /) -> list[tuple[str, str]]: ...
    @staticmethod
    def parse_nic(text: str, /) -> tuple[str, str]: ...

class moe:  # noqa: N801 - a module of the compiled one
    """Dispatch and combine: what braid.moe wraps. Shapes are checked there, bytes here."""

    @staticmethod
    def layout(
        topk_idx: Array,
        num_tokens: int,
        num_topk: int,
        num_ranks: int,
        num_experts: int,
        per_rank: Array,
        per_expert: Array,
        is_in_rank: Array,
        /,
    ) -> None: ...
    @staticmethod
    def ids_hash(topk_idx: Array, num_tokens: int, num_topk: int, /) -> int: ...
    @staticmethod
    def low_latency_half_bytes(
        max_tokens: int, row_bytes: int, num_ranks: int, num_experts: int, /
    ) -> int: ...

    class Send:
        @property
        def phase(self) -> int: ...

    class Begun:
        @property
        def rows_of(self) -> list[int]: ...
        @property
        def rank_prefix(self) -> list[int]: ...
        @property
        def per_expert(self) -> list[int]: ...
        @property
        def num_rows(self) -> int: ...
        @property
        def most_tokens(self) -> int: ...
        @property
        def phase(self) -> int: ...

    class Buffer:
        def __init__(self, comm: Comm, half_bytes: int, can_shrink: bool, /) -> None: ...
        @property
        def is_closed(self) -> bool: ...
        @property
        def half_bytes(self) -> int: ...
        @property
        def window_bytes(self) -> int: ...
        @property
        def mask(self) -> int: ...
        def close(self) -> None: ...
        def set_masked(self, rank: int, is_masked: bool, /) -> None: ...
        def clear_mask(self) -> None: ...
        def sent_bytes(self) -> list[int]: ...
        def send_dispatch(
            self,
            x: Array,
            topk_idx: Array,
            num_tokens: int,
            hidden: int,
            num_topk: int,
            max_tokens: int,
            num_experts: int,
            dtype: str,
            form: int,
            /,
        ) -> moe.Send: ...
        def receive_dispatch(
            self,
            sent: moe.Send,
            x: Array,
            scales: Array | None,
            count: Array,
            src_info: Array,
            slots: Array,
            layout_range: Array,
            wait_ns: Array | None,
            /,
        ) -> None: ...
        def send_combine(
            self,
            x: Array,
            slots: Array,
            layout_range: Array,
            topk_idx: Array,
            topk_weights: Array,
            num_tokens: int,
            hidden: int,
            num_topk: int,
            max_tokens: int,
            num_experts: int,
            dtype: str,
            of_phase: int,
            ids_hash: int,
            /,
        ) -> moe.Send: ...
        def receive_combine(self, sent: moe.Send, out: Array, wait_ns: Array | None, /) -> None: ...
        def begin(
            self,
            x: Array,
            side: Array | None,
            is_in_rank: Array,
            per_expert: Array | None,
            topk_idx: Array | None,
            topk_weights: Array | None,
            num_tokens: int,
            row_bytes: int,
            side_bytes: int,
            num_topk: int,
            num_experts: int,
            of_phase: int,
            /,
        ) -> moe.Begun: ...
        def finish(
            self,
            begun: moe.Begun,
            x: Array,
            side: Array | None,
            topk_idx: Array | None,
            topk_weights: Array | None,
            source_token: Array | None,
            num_rows: int,
            /,
        ) -> None: ...
        def abandon(self) -> None: ...
        def combine(
            self,
            x: Array,
            topk_weights: Array | None,
            rows_of: Sequence[int],
            source_token: Array,
            is_in_rank: Array,
            bias_0: Array | None,
            bias_1: Array | None,
            out: Array,
            out_weights: Array | None,
            num_rows: int,
            num_tokens: int,
            hidden: int,
            num_topk: int,
            dtype: str,
            most_tokens: int,
            of_phase: int,
            /,
        ) -> None: ...

# GEMMs that communicate: src/overlap/launch.h and calls.h have the meaning of every field.
class OverlapGemm:
    def __init__(self) -> None: ...
    dtype: int
    is_kn: bool
    ranks: int
    rank: int
    shard_rows: int
    columns: int
    depth: int
    a: int
    w: int
    bias: int

class OverlapChoice:
    def __init__(self) -> None: ...
    form: int
    band: int
    head: int
    num_blocks: int
    piece_rows: int
    by_engines: bool

class OverlapGathered:
    def __init__(self) -> None: ...
    c: int
    arrived: int
    piece_rows: int

class OverlapParted:
    def __init__(self) -> None: ...
    parts: list[int]
    told: list[int]
    c: list[int]
    num_c: int
    is_whole: bool
    num_slots: int
    outbox: int
    finished: int

class OverlapBounds:
    def __init__(self) -> None: ...
    timeout_ns: int
    page: int
    failed: int
    rank: int

class OverlapKernels:
    def __init__(self, gpu: int, /) -> None: ...
    def gather(
        self, gemm: OverlapGemm, choice: OverlapChoice, places: OverlapGathered, epoch: int,
        bounds: OverlapBounds, stream: int, /,
    ) -> None: ...  # fmt: skip
    def scatter(
        self, gemm: OverlapGemm, choice: OverlapChoice, places: OverlapParted, epoch: int,
        bounds: OverlapBounds, stream: int, /,
    ) -> None: ...  # fmt: skip
    def exchange(
        self, gemm: OverlapGemm, choice: OverlapChoice, places: OverlapParted, epoch: int,
        bounds: OverlapBounds, stream: int, /,
    ) -> None: ...  # fmt: skip

def overlap_enqueue(
    comm: Comm, gpu: int, kernels: OverlapKernels, call: int, workspace: int, workspace_bytes: int,
    gemm: OverlapGemm, choice: OverlapChoice, c: int, stream: int, /,
) -> None: ...  # fmt: skip
def overlap_workspace_bytes(call: int, gemm: OverlapGemm, choice: OverlapChoice, /) -> int: ...
def overlap_part_bytes(gemm: OverlapGemm, choice: OverlapChoice, /) -> int: ...
def overlap_flags_of_one(gemm: OverlapGemm, choice: OverlapChoice, /) -> int: ...
def wait_value(gpu: int, stream: int, at: int, value: int, /) -> None: ...
