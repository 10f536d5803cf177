"""Collectives of a group that sum."""

from datetime import timedelta
from typing import Any

from torch import Tensor

from braid.torch import collectives as coll
from braid.torch.calling import CallingGroup, Tensors, listed
from braid.torch.checks import check_one
from braid.torch.forms import Asked, also_named, asked, flat
from braid.torch.reduction import Reduction, reduction_of
from braid.torch.rows import check_count, check_dtype, plain, row
from braid.torch.work import SeveralWorks


def _how(name: str, said: Asked, tensor: Tensor) -> Reduction:
    return reduction_of(name, said.op, tensor.dtype)


class ReducingGroup(CallingGroup):
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
        each = listed(tensors if tensor is None else tensor)
        said = asked("all_reduce", opts, op, timeout, takes="op")
        how = _how("all_reduce", said, each[0])
        return self._run("all_reduce", each, each, lambda c: coll.all_reduce(c, each, how), said)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        each, said = listed(tensors), asked("all_reduce", opts, takes="op")
        hows = {t.dtype: _how("all_reduce", said, t) for t in each}

        def body(call: coll.Call) -> None:
            coll.all_reduce_coalesced(call, each, hows.__getitem__)

        return self._submit("all_reduce", each, each, body, said)

    @also_named(tensor="tensors", root="opts")
    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> Any:
        (tensor,), said = listed(tensors), asked("reduce", opts, op, timeout, takes="root op")
        how, root = _how("reduce", said, tensor), said.root
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
        (out,), blocks = listed(outputs), listed(flat(inputs))
        said = asked("reduce_scatter", opts, timeout, takes="op")
        how = _how("reduce_scatter", said, out)
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
        how = _how("reduce_scatter", said, output)
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

    # torch after 2.11 calls it by this name.
    reduce_scatter_single = _reduce_scatter_base
