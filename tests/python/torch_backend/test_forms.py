"""torch's overloads of a group's methods: lists and options, or plain tensors and their arguments,
by place or by name. Gloo takes them all; braid must take them and leave the same bits.
"""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_backend_data import mine, same

import braid
from braid.torch.forms import asked

MAX, LIMIT = dist.ReduceOp.MAX, timedelta(seconds=20)


def _options(kind, **fields):
    options = kind()
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def _outs(n):
    return [torch.zeros(4) for _ in range(n)]


def _blocks(n):
    return [mine(4, salt=i) for i in range(n)]


# What each form calls, of a group g: t is read and written, outs and whole are written, ins are
# read; root says whether this rank has the lists.
FORMS = {
    "allreduce": [
        lambda g, t, **_: g.allreduce(t, MAX),
        lambda g, t, **_: g.allreduce(t, op=MAX, timeout=LIMIT),
        lambda g, t, **_: g.allreduce(t, MAX, LIMIT),
        lambda g, t, **_: g.allreduce(tensor=t),
        lambda g, t, **_: g.allreduce([t], op=MAX),
        lambda g, t, **_: g.allreduce(
            tensors=[t], opts=_options(dist.AllreduceOptions, reduceOp=MAX)
        ),
    ],
    "broadcast": [
        lambda g, t, **_: g.broadcast(t, 1),
        lambda g, t, **_: g.broadcast(t, root=1),
        lambda g, t, **_: g.broadcast(tensor=t, root=1, timeout=LIMIT),
        lambda g, t, **_: g.broadcast([t], _options(dist.BroadcastOptions, rootRank=1)),
    ],
    "reduce": [
        lambda g, t, **_: g.reduce(t, 1),
        lambda g, t, **_: g.reduce(t, 1, MAX),
        lambda g, t, **_: g.reduce(t, 1, MAX, LIMIT),
        lambda g, t, **_: g.reduce(tensor=t, root=1, op=MAX, timeout=LIMIT),
        lambda g, t, **_: g.reduce([t], _options(dist.ReduceOptions, rootRank=1, reduceOp=MAX)),
    ],
    "allgather": [
        lambda g, t, outs, **_: g.allgather(outs, t),
        lambda g, t, outs, **_: g.allgather(outs, t, LIMIT),
        lambda g, t, outs, **_: g.allgather(output_tensors=outs, input_tensor=t, timeout=LIMIT),
        lambda g, t, outs, **_: g.allgather(output_tensors=[outs], input_tensors=[t]),
    ],
    "gather": [
        lambda g, t, outs, root, **_: g.gather(outs if root else [], t, 1),
        lambda g, t, outs, root, **_: g.gather(outs if root else [], t, root=1, timeout=LIMIT),
        lambda g, t, outs, root, **_: g.gather(
            output_tensors=outs if root else [], input_tensor=t, root=1
        ),
        lambda g, t, outs, root, **_: g.gather(
            [outs] if root else [], [t], _options(dist.GatherOptions, rootRank=1)
        ),
    ],
    "scatter": [
        lambda g, t, ins, root, **_: g.scatter(t, ins if root else [], 1),
        lambda g, t, ins, root, **_: g.scatter(t, ins if root else [], 1, LIMIT),
        lambda g, t, ins, root, **_: g.scatter(
            output_tensor=t, input_tensors=ins if root else [], root=1
        ),
        lambda g, t, ins, root, **_: g.scatter(
            [t], [ins] if root else [], _options(dist.ScatterOptions, rootRank=1)
        ),
    ],
    "reduce_scatter": [
        lambda g, t, ins, **_: g.reduce_scatter(t, ins),
        lambda g, t, ins, **_: g.reduce_scatter(t, ins, MAX, LIMIT),
        lambda g, t, ins, **_: g.reduce_scatter(output=t, input=ins, op=MAX, timeout=LIMIT),
        lambda g, t, ins, **_: g.reduce_scatter(output_tensors=[t], input_tensors=[ins]),
    ],
    "alltoall": [
        lambda g, whole, ins, **_: g.alltoall_base(whole, torch.cat(ins), [], []),
        lambda g, outs, ins, **_: g.alltoall_base(outs[0], ins[0], [2, 2], [2, 2], LIMIT),
        lambda g, outs, ins, **_: g.alltoall_base(
            output=outs[0],
            input=ins[1],
            output_split_sizes=[],
            input_split_sizes=[],
            timeout=LIMIT,
        ),
    ],
    "one tensor": [
        lambda g, t, whole, **_: g._allgather_base(output=whole, input=t),
        lambda g, t, ins, **_: g._reduce_scatter_base(outputTensor=t, inputTensor=torch.cat(ins)),
    ],
    "several": [
        lambda g, outs, ins, **_: g.allgather_coalesced(
            output_lists=[[out] for out in outs], input_list=ins[:1]
        ),
    ],
    "barrier": [
        lambda g, **_: g.barrier(),
        lambda g, **_: g.barrier(LIMIT),
        lambda g, **_: g.barrier(timeout=LIMIT),
        lambda g, **_: g.barrier(opts=_options(dist.BarrierOptions, timeout=LIMIT)),
    ],
    "messages": [
        lambda g, t, root, **_: (
            g.send([t], dstRank=0, tag=3) if root else g.recv([t], srcRank=1, tag=3)
        ),
    ],
}


@pytest.mark.parametrize("name", FORMS)
def test_gloo_agrees(torch_ranks, name):
    def body():
        n, is_root = dist.get_world_size(), dist.get_rank() == 1
        other = dist.new_group(backend="gloo")
        for form in FORMS[name]:
            left = []
            for group in (dist.group.WORLD, other):
                given = {"t": mine(4), "outs": _outs(n), "ins": _blocks(n)}
                given["whole"] = torch.zeros(4 * n)
                form(group, root=is_root, **given).wait()
                left.append([given["t"], *given["outs"], *given["ins"], given["whole"]])
            if name == "reduce" and not is_root:
                continue  # Gloo uses the tensors of the others as room
            for ours, theirs in zip(*left, strict=True):
                same(ours, theirs)

    torch_ranks(2, body)


def test_alltoall_of_lists(torch_ranks):
    """Gloo does not have it."""

    def body():
        group, n, rank = dist.group.WORLD, dist.get_world_size(), dist.get_rank()
        for form in (
            lambda outs, ins: group.alltoall(outs, ins, LIMIT),
            lambda outs, ins: group.alltoall(output=outs, input=ins, timeout=LIMIT),
            lambda outs, ins: group.alltoall(output_tensors=outs, input_tensors=ins),
        ):
            outs = _outs(n)
            form(outs, [torch.full((4,), 10.0 * rank + i) for i in range(n)]).wait()
            assert [out[0].item() for out in outs] == [10 * i + rank for i in range(n)]

    torch_ranks(2, body)


LATE = {
    "barrier": lambda g, limit: g.barrier(limit),
    "barrier by name": lambda g, limit: g.barrier(timeout=limit),
    "allgather": lambda g, limit: g.allgather(_outs(2), mine(4), limit),
    "alltoall": lambda g, limit: g.alltoall(_outs(2), _blocks(2), limit),
    "alltoall_base": lambda g, limit: g.alltoall_base(mine(4), mine(4), [], [], limit),
    "reduce": lambda g, limit: g.reduce(mine(4), 0, MAX, limit),
    "gather": lambda g, limit: g.gather([] if g.rank() else _outs(2), mine(4), 0, limit),
}


def test_a_timeout_holds_wherever_it_stands(torch_ranks):
    """The other rank comes only when this one has given up waiting."""

    def body():
        group, store = dist.group.WORLD, dist.group.WORLD.get_group_store()
        waited = {}
        for name, call in LATE.items():
            if dist.get_rank() == 1:
                store.wait([f"late/{name}"], LIMIT)
                call(group, LIMIT).wait()
                continue
            began = time.monotonic()
            work = call(group, timedelta(seconds=0.5))
            try:
                work.wait()
            except braid.Timeout:
                waited[name] = time.monotonic() - began
            finally:
                store.set(f"late/{name}", "come")
            work.wait(LIMIT)
        return waited

    waited = torch_ranks(2, body)[0]
    assert sorted(waited) == sorted(LATE)
    assert min(waited.values()) >= 0.5


def test_what_a_call_does_not_take(torch_ranks):
    """Nothing is sent: the next call is in order."""

    def body():
        group, t = dist.group.WORLD, mine(4)
        for wrong in (
            lambda: group.barrier("soon"),
            lambda: group.barrier(5),
            lambda: group.broadcast(t, MAX),
            lambda: group.allreduce(t, 1),
            lambda: group.allgather(_outs(2), t, MAX),
        ):
            with pytest.raises(braid.InvalidArgument, match="asked for tensors, then torch's opt"):
                wrong()
        with pytest.raises(TypeError, match="two forms"):
            group.reduce([t], opts=None, root=1)
        dist.barrier()

    torch_ranks(2, body)


def test_what_was_asked():
    options = _options(dist.ReduceOptions, reduceOp=MAX, rootRank=3, timeout=LIMIT, asyncOp=False)
    told = asked("reduce", options, None, takes="root op")
    assert (told.op, told.root, told.timeout, told.is_async) == (MAX, 3, LIMIT, False)
    told = asked("reduce", 2, MAX, LIMIT, takes="root op")
    assert (told.op, told.root, told.timeout, told.is_async) == (MAX, 2, LIMIT, True)
    assert asked("reduce", None, takes="root op").op == dist.ReduceOp.SUM
