"""The three operations: checks, the way a shape goes, and the memory that peers write into."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Protocol
from weakref import ref

import torch
from torch import Tensor

from braid import _braid
from braid.by_address import current_stream
from braid.comm import Comm
from braid.errors import InvalidArgument
from braid.overlap import sequential
from braid.overlap.fit import fit
from braid.overlap.kinds import check_comm, check_tensor
from braid.overlap.shapes import NAMES, Op, Shape, shape_of, why_sequential
from braid.overlap.tuner import FORMS, SEQUENTIAL, Way, candidates, choose

_KERNELS, _READY = "overlap", "overlap's calls"  # of what a comm keeps for us
_MOST_READY = 4096
_EXCHANGE = 3  # overlap::Call::kGemmArExchange
_PAGE = 2 << 20


def ag_gemm(
    x_shard: Tensor, w: Tensor, comm: Comm, *, bias: Tensor | None = None, layout: str = "nk"
) -> Tensor:
    """The rows of all ranks' x, [size * m, K], times w.T plus bias: [size * m, N].

    x_shard [m, K], alike on all ranks; w [N, K], or [K, N] with layout "kn", each rank's own; bias
    [N]. Collective. The first call of a shape measures its ways, which takes a second; later ones
    only enqueue on the current stream; what is not contiguous, or begins at no multiple of 16
    bytes, is copied there first. Enqueued, x_shard may be written to when the stream has come
    so far. Raises InvalidArgument for what does not fit; a lost peer is an error of a later call.
    Gradients end here, of which a shape's first call warns: braid.torch.nn has them.
    """
    return _run(Op.AG_GEMM, x_shard, w, comm, bias, layout)


def gemm_rs(
    x: Tensor, w: Tensor, comm: Comm, *, bias: Tensor | None = None, layout: str = "nk"
) -> Tensor:
    """The sum over the ranks of x times w.T, rows rank * m / size and on: [m / size, N].

    x [m, K], m a multiple of size; w [N, K] or [K, N]; bias [N] is added once, alike on all ranks.
    Parts travel rounded and are summed in fp32 in the order of the ranks, so a result is the same
    bits in every call. The rest is as in ag_gemm().
    """
    return _run(Op.GEMM_RS, x, w, comm, bias, layout)


def gemm_ar(
    x: Tensor, w: Tensor, comm: Comm, *, bias: Tensor | None = None, layout: str = "nk"
) -> Tensor:
    """The sum over the ranks of x times w.T, on all of them, the same bits: [m, N].

    As gemm_rs(); m may be anything.
    """
    return _run(Op.GEMM_AR, x, w, comm, bias, layout)


def way_of(op: str, x: Tensor, w: Tensor, comm: Comm, *, layout: str = "nk") -> str:
    """How such a call goes, in words; "not measured" before the first. Of this rank alone."""
    asked = [each for each, name in NAMES.items() if isinstance(op, str) and name == op]
    if not asked:
        raise InvalidArgument(f"way_of: op {op!r:.80}; {', '.join(NAMES.values())}")
    shape = _checked("way_of", asked[0], x, w, comm, None, layout)
    why = why_sequential(shape, x, w)
    if why:
        return f"sequential: {why}"
    kernels = _kernels_of(comm)
    way = kernels.ways.get(shape) if kernels else None
    return "not measured" if way is None else str(way)


class _Ready(Protocol):
    """Of calls that are alike but for where their elements lie: all that need be done once is."""

    def run(self, comm: Comm, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor: ...


def _run(op: Op, x: Tensor, w: Tensor, comm: Comm, bias: Tensor | None, layout: str) -> Tensor:
    """Looks up what checks and the way of a shape have come to: at few rows the GPU is done before
    the host has found it out again.
    """
    try:
        ready = comm._kept.get(_READY) or _ready_of(comm)
        # All of a tensor that checks look at.
        of_bias = None if bias is None else (bias.shape, bias.dtype, bias.device)
        key = (op, layout, x.shape, x.dtype, x.device, w.shape, w.dtype, w.device, of_bias)
        call = ready.get(key)
    except Exception as found:  # whatever it is that is no comm or no tensor
        raise (_why_not(op, x, w, comm, bias, layout) or found) from None
    if call is None:
        call = _make_ready(op, x, w, comm, bias, layout)
        if len(ready) >= _MOST_READY:
            ready.clear()
        ready[key] = call
    return call.run(comm, x, w, bias)


_Key = tuple[object, ...]


def _ready_of(comm: Comm) -> dict[_Key, _Ready]:
    ready: dict[_Key, _Ready] | None = comm._kept.get(_READY)
    if ready is None:
        ready = comm._kept[_READY] = {}
    return ready


def _make_ready(
    op: Op, x: Tensor, w: Tensor, comm: Comm, bias: Tensor | None, layout: str
) -> _Ready:
    """Raises what is wrong. Collective where the shape is measured."""
    shape = _checked(NAMES[op], op, x, w, comm, bias, layout)
    _warn_of_gradients(NAMES[op], x, w, bias)
    if why_sequential(shape, x, w, bias):
        return sequential.Anywhere(shape)
    kernels = _kernels_of(comm) or _make_kernels(comm, x.device)
    return kernels.ready(shape, kernels.way(shape, x, w, bias))


def _warn_of_gradients(name: str, *tensors: Tensor | None) -> None:
    """At a shape's first call alone, so that no later one pays for it."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        warnings.warn(
            f"{name}: gradients end here, though an operand requires them: train with the layers of"
            " braid.torch.nn, or call it under torch.no_grad()",
            stacklevel=5,
        )


def _checked(
    name: str, op: Op, x: Tensor, w: Tensor, comm: Comm, bias: Tensor | None, layout: str
) -> Shape:
    """Raises what is wrong with the arguments of the function `name`."""
    check_tensor(name, "x_shard" if name == NAMES[Op.AG_GEMM] else "x", x)
    check_tensor(name, "w", w)
    check_comm(name, comm)
    if bias is not None:
        check_tensor(name, "bias", bias)
    return shape_of(op, x, w, bias, layout, comm.size)


def _why_not(
    op: Op, x: Tensor, w: Tensor, comm: Comm, bias: Tensor | None, layout: str
) -> InvalidArgument | None:
    """The same of a call, to be raised by who has seen that something is wrong."""
    try:
        _checked(NAMES[op], op, x, w, comm, bias, layout)
    except InvalidArgument as wrong:
        return wrong
    return None


class _ByKernels:
    """One shape one way by kernels: but for addresses all is known."""

    def __init__(self, kernels: "_Kernels", shape: Shape, way: Way, rank: int) -> None:
        # Of an all-reduce whose rows no ranks divide, all are shards with one row more.
        rows = shape.rows
        if shape.op is Op.GEMM_AR and not way.exchanges:
            rows = -(-rows // shape.size) * shape.size
        self._kernels, self._name = kernels, shape.op.name.lower()
        self._rows, self._padded = shape.rows, replace(shape, rows=rows)
        self._result = self._padded.result_rows, shape.columns
        self._call = _EXCHANGE if way.exchanges else int(shape.op)
        self._gemm, self._choice = _gemm(self._padded, way, rank), _choice(way)
        self._nbytes = _braid.overlap_workspace_bytes(self._call, self._gemm, self._choice)

    def run(self, comm: Comm, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        kernels, rows = self._kernels, self._rows
        x, w, b = fit(x), fit(w), None if bias is None else fit(bias)
        if rows != self._padded.rows:
            few, x = x, x.new_zeros(self._padded.rows, self._padded.depth)
            x[:rows] = few
        out = x.new_empty(*self._result)
        room = kernels.room(self._nbytes)
        comm._calls.run(
            self._name, _braid.overlap_enqueue, comm._core, kernels.gpu, kernels.launcher,
            self._call, *room, self._gemm, self._choice, x.data_ptr(), w.data_ptr(),
            0 if b is None else b.data_ptr(), out.data_ptr(), current_stream(kernels.gpu),
        )  # fmt: skip
        return out if rows == self._padded.rows else out[:rows]


def _kernels_of(comm: Comm) -> "_Kernels | None":
    """Those of its calls so far."""
    kernels: _Kernels | None = comm._kept.get(_KERNELS)
    return kernels


def _make_kernels(comm: Comm, device: torch.device) -> "_Kernels":
    kernels = comm._kept[_KERNELS] = _Kernels(comm, device)
    return kernels


class _Kernels:
    """Of one comm: its kernels, its workspace, and the way of every shape so far. They go with it
    where it ends in peace (Comm._kept).
    """

    def __init__(self, comm: Comm, device: torch.device) -> None:
        self._comm_ref, self._device, self.gpu = ref(comm), device, device.index
        self.launcher = _braid.OverlapKernels(device.index)
        self._workspace: Tensor | None = None
        self._room = 0, 0
        self._is_captured = False  # a graph holds the workspace's address
        self._captured: list[Tensor] = []  # earlier workspaces, of which some rank's graph does
        self._clusters = 0
        self.ways: dict[Shape, Way] = {}

    @property
    def _comm(self) -> Comm:
        """Who has kernels without it has kept them by themselves."""
        comm = self._comm_ref()
        if comm is None:
            raise InvalidArgument("overlap: the comm of these kernels is gone")
        return comm

    def way(self, shape: Shape, x: Tensor, w: Tensor, bias: Tensor | None) -> Way:
        """Collective, and measures, the first time."""
        if x.device != self._device:
            raise InvalidArgument(f"overlap: {x.device}; this comm's calls are on {self._device}")
        if shape not in self.ways:
            if torch.cuda.is_current_stream_capturing():
                raise InvalidArgument(
                    "overlap: the first call of a shape measures, which no graph can hold: make"
                    " one before the capture"
                )
            ways = self.candidates(shape)
            calls = [partial(self.ready(shape, way).run, self._comm, x, w, bias) for way in ways]
            self.ways[shape], _ = choose(self._comm, ways, calls)
        return self.ways[shape]

    def set_way(self, shape: Shape, way: Way) -> None:
        """Instead of the measured one: for tests and measurements. All ranks set the same."""
        self.ways[shape] = way
        _ready_of(self._comm).clear()

    def candidates(self, shape: Shape) -> list[Way]:
        """Collective, the first time."""
        if self._clusters == 0:
            num_blocks = _braid.overlap_num_blocks(self._comm._core, self.gpu, self.launcher)
            self._clusters = num_blocks // 2
        return list(candidates(shape, self._clusters))

    def ready(self, shape: Shape, way: Way) -> _Ready:
        """The shape's calls in that way."""
        if way == SEQUENTIAL:
            return sequential.on_gpu(shape, self.gpu)
        return _ByKernels(self, shape, way, self._comm.rank)

    def room(self, nbytes: int) -> tuple[int, int]:
        """Address and bytes of the workspace, with room for so many. Collective where it has not,
        which is so on all ranks alike.
        """
        if self._room[1] < nbytes:
            self._make_room(nbytes)
        self._is_captured = self._is_captured or torch.cuda.is_current_stream_capturing()
        return self._room

    def _make_room(self, nbytes: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise InvalidArgument("overlap: more memory is needed than before the capture")
        # Whatever fails here, memory being short for one, leaves none behind: a call in one that is
        # not registered any more would write where peers do not look.
        old, self._workspace, self._room = self._workspace, None, (0, 0)
        if old is not None:
            self._let_go(old)
        nbytes = -(-nbytes // _PAGE) * _PAGE
        workspace = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        torch.cuda.synchronize(self._device)
        self._workspace = self._comm.register(workspace)
        self._room = workspace.data_ptr(), nbytes

    def _let_go(self, workspace: Tensor) -> None:
        """Of a workspace that is replaced. Where a call on it was captured on any rank it stays as
        it is, registered, until the comm ends: replays write into it, and into the peers'.
        """
        if any(self._comm.all_gather_object(self._is_captured)):
            self._captured.append(workspace)
        else:
            self._comm.unregister(workspace)
        self._is_captured = False


def _gemm(shape: Shape, way: Way, rank: int) -> _braid.OverlapGemm:
    """Without addresses."""
    gemm = _braid.OverlapGemm()
    gemm.dtype = _braid.dtype_code(str(shape.dtype).removeprefix("torch."))
    gemm.is_kn = shape.is_kn
    gemm.ranks, gemm.rank = shape.size, rank
    gemm.shard_rows = shape.rows if way.exchanges else shape.shard_rows
    gemm.columns, gemm.depth = shape.columns, shape.depth
    return gemm


def _choice(way: Way) -> _braid.OverlapChoice:
    choice = _braid.OverlapChoice()
    choice.form, choice.band, choice.head = FORMS[way.form], way.band, way.head
    choice.piece_rows, choice.by_engines = way.piece_rows, way.by_engines
    choice.batches, choice.batch_tiles = way.batches, way.batch_tiles
    return choice
