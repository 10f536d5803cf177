"""The three operations: checks, the way a shape goes, and the memory that peers write into."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from weakref import ref

import torch
from torch import Tensor

from braid import _braid
from braid.comm import Comm
from braid.errors import InvalidArgument
from braid.overlap import sequential
from braid.overlap.shapes import Op, Shape, shape_of, why_sequential
from braid.overlap.tuner import FORMS, SEQUENTIAL, Way, candidates, choose

_NAME = "overlap"  # of what a comm keeps for us
_EXCHANGE = 3  # overlap::Call::kGemmArExchange
_PAGE = 2 << 20
_ALIGNED = 16  # bytes that a kernel's copies take at once


def ag_gemm(
    x_shard: Tensor, w: Tensor, comm: Comm, *, bias: Tensor | None = None, layout: str = "nk"
) -> Tensor:
    """The rows of all ranks' x, [size * m, K], times w.T plus bias: [size * m, N].

    x_shard [m, K], alike on all ranks; w [N, K], or [K, N] with layout "kn", each rank's own; bias
    [N]. Collective. The first call of a shape measures its ways, which takes a second; later ones
    only enqueue on the current stream; what is not contiguous, or begins at no multiple of 16
    bytes, is copied there first. Enqueued, x_shard may be written to when the stream has come
    so far. Raises InvalidArgument for what does not fit; a lost peer is an error of a later call.
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
    shape = shape_of(Op[op.upper()], x, w, None, layout, comm.size)
    why = why_sequential(shape, x, w)
    if why:
        return f"sequential: {why}"
    kernels = _kernels_of(comm)
    way = kernels.ways.get(shape) if kernels else None
    return "not measured" if way is None else str(way)


def _run(op: Op, x: Tensor, w: Tensor, comm: Comm, bias: Tensor | None, layout: str) -> Tensor:
    shape, has_kernel = _checked(op, x, w, comm.size, bias, layout)
    x, w, bias = _plain(x), _plain(w), None if bias is None else _plain(bias)
    if not has_kernel:
        return sequential.run(comm, op, x, w, bias, shape.is_kn)
    kernels = _kernels_of(comm) or _make_kernels(comm, x.device)
    return kernels.run(shape, _fit(x), _fit(w), None if bias is None else _fit(bias))


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _fit(tensor: Tensor) -> Tensor:
    """The tensor as kernels read it, dense and at a multiple of 16 bytes: a copy on the current
    stream where it is not. Other ranks do not know, so it must not change the way.
    """
    dense = tensor.contiguous()
    return dense.clone() if dense.data_ptr() % _ALIGNED else dense


_Key = tuple[object, ...]
_CHECKED: dict[_Key, tuple[Shape, bool]] = {}
_MOST_CHECKED = 4096


def _key(tensor: Tensor | None) -> _Key | None:
    """All of a tensor that checks look at."""
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _checked(
    op: Op, x: Tensor, w: Tensor, size: int, bias: Tensor | None, layout: str
) -> tuple[Shape, bool]:
    """The call's shape, and whether kernels take it; looked up where such a call was checked
    before: at few rows the GPU is done before the host has checked again.
    """
    key = (op, size, layout, _key(x), _key(w), _key(bias))
    found = _CHECKED.get(key)
    if found is None:
        shape = shape_of(op, x, w, bias, layout, size)
        found = shape, not why_sequential(shape, x, w, bias)
        if len(_CHECKED) >= _MOST_CHECKED:
            _CHECKED.clear()
        _CHECKED[key] = found
    return found


def _kernels_of(comm: Comm) -> "_Kernels | None":
    """Those of its calls so far."""
    kernels: _Kernels | None = comm._kept.get(_NAME)
    return kernels


def _make_kernels(comm: Comm, device: torch.device) -> "_Kernels":
    kernels = comm._kept[_NAME] = _Kernels(comm, device)
    return kernels


class _Kernels:
    """Of one comm: its kernels, its workspace, and the way of every shape so far. They go with it
    where it ends in peace (Comm._kept).
    """

    def __init__(self, comm: Comm, device: torch.device) -> None:
        self._comm_ref, self._device = ref(comm), device
        self._launcher = _braid.OverlapKernels(device.index)
        self._workspace: Tensor | None = None
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

    def run(self, shape: Shape, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        if x.device != self._device:
            raise InvalidArgument(f"overlap: {x.device}; this comm's calls are on {self._device}")
        way = self.ways.get(shape)
        call: Callable[[Way], Tensor] = partial(self._call, shape, x, w, bias)
        if way is None:
            if torch.cuda.is_current_stream_capturing():
                raise InvalidArgument(
                    "overlap: the first call of a shape measures, which no graph can hold: make"
                    " one before the capture"
                )
            way, _ = choose(self._comm, self.candidates(shape), call)
            self.ways[shape] = way
        return call(way)

    def candidates(self, shape: Shape) -> list[Way]:
        """Collective, the first time."""
        if self._clusters == 0:
            num_blocks = _braid.overlap_num_blocks(
                self._comm._core, self._device.index, self._launcher
            )
            self._clusters = num_blocks // 2
        return list(candidates(shape, self._clusters))

    def _call(self, shape: Shape, x: Tensor, w: Tensor, bias: Tensor | None, way: Way) -> Tensor:
        if way == SEQUENTIAL:
            return sequential.run(self._comm, shape.op, x, w, bias, shape.is_kn)
        # Of an all-reduce whose rows no ranks divide, all are shards with one row more.
        if shape.op is Op.GEMM_AR and not way.exchanges and shape.rows % shape.size:
            rows = -(-shape.rows // shape.size) * shape.size
            padded = torch.zeros(rows, shape.depth, dtype=x.dtype, device=x.device)
            padded[: shape.rows] = x
            return self._call(replace(shape, rows=rows), padded, w, bias, way)[: shape.rows]
        out = torch.empty(shape.result_rows, shape.columns, dtype=x.dtype, device=x.device)
        gemm, choice = self._gemm(shape, way, x, w, bias), _choice(way)
        call = _EXCHANGE if way.exchanges else int(shape.op)
        self._make_room(_braid.overlap_workspace_bytes(call, gemm, choice))
        assert self._workspace is not None
        self._is_captured = self._is_captured or torch.cuda.is_current_stream_capturing()
        body = partial(
            _braid.overlap_enqueue, self._comm._core, self._device.index, self._launcher, call,
            self._workspace.data_ptr(), self._workspace.numel(), gemm, choice, out.data_ptr(),
            torch.cuda.current_stream(self._device).cuda_stream,
        )  # fmt: skip
        self._comm._calls.run(shape.op.name.lower(), body)
        return out

    def _gemm(
        self, shape: Shape, way: Way, x: Tensor, w: Tensor, bias: Tensor | None
    ) -> _braid.OverlapGemm:
        gemm = _braid.OverlapGemm()
        gemm.dtype = _braid.dtype_code(str(shape.dtype).removeprefix("torch."))
        gemm.is_kn = shape.is_kn
        gemm.ranks, gemm.rank = self._comm.size, self._comm.rank
        gemm.shard_rows = shape.rows if way.exchanges else shape.shard_rows
        gemm.columns, gemm.depth = shape.columns, shape.depth
        gemm.a, gemm.w = x.data_ptr(), w.data_ptr()
        gemm.bias = 0 if bias is None else bias.data_ptr()
        return gemm

    def _make_room(self, nbytes: int) -> None:
        """Collective where it is not enough, which is so on all ranks alike."""
        if self._workspace is not None and self._workspace.numel() >= nbytes:
            return
        if torch.cuda.is_current_stream_capturing():
            raise InvalidArgument("overlap: more memory is needed than before the capture")
        # Whatever fails here, memory being short for one, leaves none behind: a call in one that is
        # not registered any more would write where peers do not look.
        old, self._workspace = self._workspace, None
        if old is not None:
            self._let_go(old)
        nbytes = -(-nbytes // _PAGE) * _PAGE
        workspace = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        torch.cuda.synchronize(self._device)
        self._workspace = self._comm.register(workspace)

    def _let_go(self, workspace: Tensor) -> None:
        """Of a workspace that is replaced. Where a call on it was captured on any rank it stays as
        it is, registered, until the comm ends: replays write into it, and into the peers'.
        """
        if any(self._comm.all_gather_object(self._is_captured)):
            self._captured.append(workspace)
        else:
            self._comm.unregister(workspace)
        self._is_captured = False


def _choice(way: Way) -> _braid.OverlapChoice:
    choice = _braid.OverlapChoice()
    choice.form, choice.band, choice.head = FORMS[way.form], way.band, way.head
    choice.piece_rows, choice.by_engines = way.piece_rows, way.by_engines
    choice.batches, choice.batch_tiles = way.batches, way.batch_tiles
    return choice
