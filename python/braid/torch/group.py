"""BraidGroup: a process group of torch.distributed whose collectives are braid's.

torch 2.11 lets Python write a whole ProcessGroup, not a backend inside one: C++ (DDP's reducer,
functional collectives) reaches the methods below through torch's own trampolines, Python calls
them directly. So one object serves both device types. The methods have torch's names and
arguments; they say which tensors a call reads and writes, and collectives.py does it.
"""

import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d

from braid.torch import collectives as coll
from braid.torch.answers import Answers
from braid.torch.checks import (
    check_coalesced,
    check_divides,
    check_each,
    check_list,
    check_one,
    check_rank,
    check_tag,
    split_elements,
)
from braid.torch.comms import Body, Comms, check_options
from braid.torch.errors import InvalidArgument
from braid.torch.forms import Asked, also_named, asked, flat
from braid.torch.meeting import Meeting
from braid.torch.messages import receive, send
from braid.torch.profiles import shown
from braid.torch.reduction import Reduction, reduction_of
from braid.torch.rows import check_count, check_dtype, plain, row
from braid.torch.work import GpuWork, SeveralWorks, seconds_of

Tensors = Sequence[Tensor]

_OTHERS_S = 30.0  # of monitored_barrier, when nobody says


def _listed(tensors: Any) -> list[Tensor]:
    """torch has every call for one tensor and for a list."""
    return [plain(t) for t in ([tensors] if isinstance(tensors, Tensor) else tensors)]


class BraidGroup(Answers):
    """Made by torch.distributed.init_process_group("braid") and new_group().

    Threads: any; but all ranks must make their calls of a group in one order. Errors are braid's
    (braid.Error) and show when the Work is waited for; an argument that this rank can see to be
    wrong raises at once.
    """

    def __init__(self, comms: Comms, store: Any) -> None:
        super().__init__(comms.meeting.rank, comms.meeting.size, comms.meeting.name, store)
        self._comms = comms
        self._is_checked = False

    # ---- how a call is run ----
    #
    # Calls that programs make many of ask for the short way first (plain_calls.py), which is there
    # once a call on a GPU was made. Their arguments have torch's own names: also_named() would be
    # one more Python call in each.

    def _short(self, work: GpuWork) -> GpuWork:
        """Of a call that went the short way."""
        self._calls += 1
        return self._noted(work)

    def _run(
        self,
        name: str,
        tensors: Tensors,
        outputs: Tensors,
        body: Body,
        said: Asked,
    ) -> Any:
        check_dtype(name, tensors)
        return self._submit(name, tensors, outputs, body, said)

    def _submit(
        self,
        name: str,
        tensors: Tensors,
        outputs: Tensors,
        body: Body,
        said: Asked,
    ) -> Any:
        self._count_call()
        is_async, limit_s = said.is_async, seconds_of(said.timeout)
        with shown(name):
            work = self._comms.run(name, tensors, outputs, body, is_async=is_async, limit_s=limit_s)
        return self._noted(work)

    def _count_call(self) -> None:
        self._calls += 1
        if self._is_checked:
            return
        self._is_checked = True
        asked = distributed_c10d._world.pg_backend_config.get(self, "")
        others = [part for part in asked.split(",") if part and not part.endswith(":braid")]
        if others and self.rank() == 0:
            warnings.warn(
                f"group {self._name} was asked for as '{asked}'; this torch cannot put a backend"
                " that is written in Python beside another one, so braid does"
                f" {', '.join(others)} too",
                stacklevel=4,
            )

    def _how(self, name: str, said: Asked, tensor: Tensor) -> Reduction:
        return reduction_of(name, said.op, tensor.dtype)

    # ---- reductions ----

    def allreduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        tensor: Any = None,
        op: Any = None,
    ) -> Any:
        short = self._comms.plain
        if short is not None and (work := short.all_reduce(tensors, opts)) is not None:
            return self._short(work)
        each = _listed(tensors if tensor is None else tensor)
        said = asked("all_reduce", opts, op, timeout, takes="op")
        how = self._how("all_reduce", said, each[0])
        return self._run("all_reduce", each, each, lambda c: coll.all_reduce(c, each, how), said)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        each, said = _listed(tensors), asked("all_reduce", opts, takes="op")
        hows = {t.dtype: self._how("all_reduce", said, t) for t in each}

        def body(call: coll.Call) -> None:
            coll.all_reduce_coalesced(call, each, hows.__getitem__)

        return self._submit("all_reduce", each, each, body, said)

    @also_named(tensor="tensors", root="opts")
    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> Any:
        (tensor,), said = _listed(tensors), asked("reduce", opts, op, timeout, takes="root op")
        how, root = self._how("reduce", said, tensor), said.root
        self._check_rank("reduce", "root", root)
        return self._run(
            "reduce", [tensor], [tensor], lambda c: coll.reduce(c, tensor, root, how), said
        )

    @also_named(
        output_tensors="outputs",
        output="outputs",
        input_tensors="inputs",
        input_tensor="inputs",
        input="inputs",
        op="opts",
    )
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        (out,), blocks = _listed(outputs), _listed(flat(inputs))
        said = asked("reduce_scatter", opts, timeout, takes="op")
        how = self._how("reduce_scatter", said, out)
        check_one("reduce_scatter", "input", blocks, self.size(), self.rank(), out.numel())
        return self._run(
            "reduce_scatter",
            [out, *blocks],
            [out],
            lambda c: coll.reduce_scatter_list(c, out, blocks, how),
            said,
        )

    def _reduce_scatter_base(
        self,
        outputTensor: Tensor,  # noqa: N803
        inputTensor: Tensor,  # noqa: N803
        opts: Any = None,
    ) -> Any:
        short = self._comms.plain
        if short is not None:
            work = short.reduce_scatter(outputTensor, inputTensor, opts)
            if work is not None:
                return self._short(work)
        output, tensor = plain(outputTensor), plain(inputTensor)
        said = asked("reduce_scatter", opts, takes="op")
        how = self._how("reduce_scatter", said, output)
        check_dtype("reduce_scatter", [output, tensor])
        check_count("reduce_scatter", "input", tensor.numel(), output.numel() * self.size())
        return self._run(
            "reduce_scatter",
            [output, tensor],
            [output],
            lambda c: coll.reduce_scatter(c, output, row(tensor), how),
            said,
        )

    @also_named(outputTensors="outputs", inputTensors="inputs")
    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return SeveralWorks([self._reduce_scatter_base(out, t, opts) for out, t in pairs])

    # ---- moves ----

    def broadcast(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        tensor: Any = None,
        root: int | None = None,
    ) -> Any:
        short = self._comms.plain
        if short is not None and (work := short.broadcast(tensors, opts)) is not None:
            return self._short(work)
        each = _listed(tensors if tensor is None else tensor)
        said = asked("broadcast", opts, root, timeout, takes="root")
        root = said.root
        self._check_rank("broadcast", "root", root)
        return self._run("broadcast", each, each, lambda c: coll.broadcast(c, each, root), said)

    @also_named(
        output_tensors="outputs", input_tensors="inputs", input_tensor="inputs", timeout="opts"
    )
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        (tensor,), parts = _listed(inputs), _listed(flat(outputs))
        said = asked("all_gather", opts)
        check_one("all_gather", "output", parts, self.size(), self.rank(), tensor.numel())
        return self._run(
            "all_gather",
            [tensor, *parts],
            parts,
            lambda c: coll.all_gather_list(c, parts, tensor),
            said,
        )

    def _allgather_base(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        opts: Any = None,
    ) -> Any:
        short = self._comms.plain
        if short is not None and (work := short.all_gather(output, input, opts)) is not None:
            return self._short(work)
        output, tensor = plain(output), plain(input)
        check_dtype("all_gather", [output, tensor])
        check_count("all_gather", "output", output.numel(), tensor.numel() * self.size())
        return self._run(
            "all_gather",
            [output, tensor],
            [output],
            lambda c: coll.all_gather(c, output, tensor),
            asked("all_gather", opts),
        )

    @also_named(output_lists="outputs", input_list="inputs")
    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Any:
        """outputs[rank][i] becomes that rank's inputs[i]."""
        check_coalesced(outputs, inputs, self.size())
        each = zip(*outputs, strict=True)
        pairs = zip(each, inputs, strict=True)
        return SeveralWorks([self.allgather([list(outs)], [t], opts) for outs, t in pairs])

    @also_named(output_lists="outputs", input_list="inputs")
    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return SeveralWorks([self._allgather_base(out, t, opts) for out, t in pairs])

    @also_named(
        output_tensors="outputs", input_tensors="inputs", input_tensor="inputs", root="opts"
    )
    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        (tensor,), said = _listed(inputs), asked("gather", opts, timeout, takes="root")
        root = said.root
        self._check_rank("gather", "root", root)
        parts = _listed(flat(outputs)) if self.rank() == root else []
        if self.rank() == root:
            check_each("gather", "output", parts, self.size(), tensor.numel())
        return self._run(
            "gather",
            [tensor, *parts],
            parts,
            lambda c: coll.gather(c, parts, tensor, root),
            said,
        )

    @also_named(
        output_tensors="outputs", output_tensor="outputs", input_tensors="inputs", root="opts"
    )
    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        (out,), said = _listed(outputs), asked("scatter", opts, timeout, takes="root")
        root = said.root
        self._check_rank("scatter", "root", root)
        blocks = _listed(flat(inputs)) if self.rank() == root else []
        if self.rank() == root:
            check_each("scatter", "input", blocks, self.size(), out.numel())
        return self._run(
            "scatter", [out, *blocks], [out], lambda c: coll.scatter(c, out, blocks, root), said
        )

    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        received, sent = list(output_split_sizes or ()), list(input_split_sizes or ())
        short = self._comms.plain if not received and not sent else None
        if short is not None and (work := short.all_to_all(output, input, opts)) is not None:
            return self._short(work)
        output, tensor = plain(output), plain(input)

        if not received and not sent:
            check_count("all_to_all", "output", output.numel(), tensor.numel())
            check_divides("input", tensor, self.size())
            check_divides("output", output, self.size())
            body: Body = partial(coll.all_to_all, out=output, tensor=tensor)
        else:
            to_each = split_elements("input", tensor, sent, self.size())
            from_each = split_elements("output", output, received, self.size())
            body = partial(
                coll.all_to_all_rows, out=output, tensor=tensor, received=from_each, counts=to_each
            )
        said = asked("all_to_all", opts, timeout)
        return self._run("all_to_all", [output, tensor], [output], body, said)

    @also_named(
        output_tensors="outputs",
        output_tensor="outputs",
        output="outputs",
        input_tensors="inputs",
        input_tensor="inputs",
        input="inputs",
        timeout="opts",
    )
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        outs, ins, said = _listed(outputs), _listed(inputs), asked("all_to_all", opts)
        check_list("all_to_all", "output list", len(outs), self.size())
        own = outs[self.rank()].numel()
        check_one("all_to_all", "input", ins, self.size(), self.rank(), own)
        return self._run(
            "all_to_all", [*ins, *outs], outs, lambda c: coll.all_to_all_list(c, outs, ins), said
        )

    # torch after 2.11 calls the calls on one tensor by these names.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base

    # ---- messages ----

    @also_named(dstRank="dst")
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        (tensor,) = _listed(tensors)
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
        (tensor,) = _listed(tensors)
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

    def _check_rank(self, name: str, argument: str, rank: int) -> None:
        check_rank(name, argument, rank, self.size())

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
