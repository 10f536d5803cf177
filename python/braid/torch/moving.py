"""Collectives of a group that only move."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torch import Tensor

from braid.torch import collectives as coll
from braid.torch.calling import Tensors, listed
from braid.torch.checks import (
    check_coalesced,
    check_divides,
    check_each,
    check_list,
    check_one,
    split_elements,
)
from braid.torch.comms import Body
from braid.torch.forms import also_named, asked, flat
from braid.torch.reducing import ReducingGroup
from braid.torch.rows import check_count, check_dtype, plain
from braid.torch.work import SeveralWorks


class MovingGroup(ReducingGroup):
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
        each = listed(tensors if tensor is None else tensor)
        said = asked("broadcast", opts, root, timeout, takes="root")
        root = said.root
        self._check_rank("broadcast", "root", root)
        return self._run("broadcast", each, each, lambda c: coll.broadcast(c, each, root), said)

    @also_named(
        output_tensors="outputs", input_tensors="inputs", input_tensor="inputs", timeout="opts"
    )
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        (tensor,), parts = listed(inputs), listed(flat(outputs))
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
        (tensor,), said = listed(inputs), asked("gather", opts, timeout, takes="root")
        root = said.root
        self._check_rank("gather", "root", root)
        parts = listed(flat(outputs)) if self.rank() == root else []
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
        (out,), said = listed(outputs), asked("scatter", opts, timeout, takes="root")
        root = said.root
        self._check_rank("scatter", "root", root)
        blocks = listed(flat(inputs)) if self.rank() == root else []
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
        outs, ins, said = listed(outputs), listed(inputs), asked("all_to_all", opts)
        check_list("all_to_all", "output list", len(outs), self.size())
        own = outs[self.rank()].numel()
        check_one("all_to_all", "input", ins, self.size(), self.rank(), own)
        return self._run(
            "all_to_all", [*ins, *outs], outs, lambda c: coll.all_to_all_list(c, outs, ins), said
        )

    # torch after 2.11 calls the calls on one tensor by these names.
    all_gather_single = _allgather_base
    all_to_all_single = alltoall_base
