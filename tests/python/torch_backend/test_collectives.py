"""Every collective on CPU tensors against Gloo in the same processes, or exact numbers where Gloo
does not have it.
"""

import pytest
import torch
import torch.distributed as dist
from torch_backend_data import all_ranks, mine, same

import braid

COUNTS = [0, 1, 5, 1000, 70_001]
TYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int8, torch.uint8]


def twice(call, *tensors):
    """The call by braid and by Gloo on equal tensors; both results."""
    other = dist.new_group(backend="gloo")
    for group in (dist.group.WORLD, other):
        copies = [[t.clone() for t in x] if isinstance(x, list) else x.clone() for x in tensors]
        call(group, *copies)
        yield copies


def agree(call, *tensors):
    """Both backends leave the same bits in every tensor."""
    ours, theirs = twice(call, *tensors)
    for a, b in zip(ours, theirs, strict=True):
        pairs = zip(a, b, strict=True) if isinstance(a, list) else [(a, b)]
        for x, y in pairs:
            same(x, y)


@pytest.mark.parametrize("op", ["SUM", "PRODUCT", "MIN", "MAX"])
def test_all_reduce(torch_ranks, op):
    kind = getattr(dist.ReduceOp, op)

    def body():
        other = dist.new_group(backend="gloo")
        for dtype in TYPES:
            for count in COUNTS[1:]:
                ours, theirs = mine(count, dtype), mine(count, dtype)
                dist.all_reduce(ours, kind)
                dist.all_reduce(theirs, kind, group=other)
                same(ours, theirs)

    torch_ranks(3, body)


def test_all_reduce_of_nothing(torch_ranks):
    def body():
        empty = torch.empty(0)
        dist.all_reduce(empty)
        gathered = torch.empty(0)
        dist.all_gather_into_tensor(gathered, empty)
        return empty.numel() + gathered.numel()

    assert torch_ranks(2, body) == [0, 0]


def test_broadcast_and_gathers(torch_ranks):
    def body():
        n = dist.get_world_size()
        for dtype in [*TYPES, torch.bool, torch.bfloat16, torch.complex64]:
            for count in COUNTS[1:]:
                every = all_ranks(count, dtype)
                got = mine(count, dtype)
                dist.broadcast(got, n - 1)
                same(got, every[n - 1])
                whole = torch.empty(n * count, dtype=dtype)
                dist.all_gather_into_tensor(whole, mine(count, dtype))
                same(whole, torch.cat(every))
                parts = [torch.empty(count, dtype=dtype) for _ in range(n)]
                dist.all_gather(parts, mine(count, dtype))
                for part, want in zip(parts, every, strict=True):
                    same(part, want)

    torch_ranks(3, body)


def test_rooted_calls(torch_ranks):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        for root in range(n):
            for count in COUNTS[1:]:
                every = all_ranks(count, salt=root)
                parts = [torch.empty(count) for _ in range(n)] if rank == root else None
                dist.gather(mine(count, salt=root), parts, dst=root)
                for part, want in zip(parts or [], every, strict=False):
                    same(part, want)
                sent = mine(count, salt=root)
                dist.reduce(sent, dst=root)
                same(sent, sum(every) if rank == root else mine(count, salt=root))
                blocks = [t + root for t in every] if rank == root else None
                got = torch.empty(count)
                dist.scatter(got, blocks, src=root)
                same(got, every[rank] + root)

    torch_ranks(3, body)


def test_ranks_that_mean_different_roots_are_told(torch_ranks):
    """Of a reduce nobody was, and no rank had its result."""

    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        other = 1 if rank == 2 else 2
        ones = [torch.ones(3)] * n
        for call in (
            lambda group: dist.reduce(torch.ones(3), other, group=group),
            lambda group: dist.broadcast(torch.ones(3), other, group=group),
            lambda group: dist.gather(
                torch.ones(3), ones if rank == other else None, other, group=group
            ),
            lambda group: dist.scatter(
                torch.ones(3), ones if rank == other else None, other, group=group
            ),
        ):
            group = dist.new_group()
            with pytest.raises(braid.Error):
                call(group)
            group.abort()
        dist.barrier()

    torch_ranks(3, body)


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_reduce_scatter(torch_ranks, op):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        kind = getattr(dist.ReduceOp, op)
        for count in COUNTS[1:]:
            stack = torch.stack(all_ranks(n * count))
            want = {"SUM": stack.sum(0), "AVG": stack.sum(0) / n, "MAX": stack.max(0).values}[op]
            block = want[rank * count : (rank + 1) * count]
            got = torch.empty(count)
            dist.reduce_scatter_tensor(got, mine(n * count), kind)
            assert torch.allclose(got, block)
            from_list = torch.empty(count)
            dist.reduce_scatter(from_list, list(mine(n * count).split(count)), kind)
            same(from_list, got)

    torch_ranks(3, body)


def test_all_to_all(torch_ranks):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        for count in (1, 7, 3000):
            every = all_ranks(n * count, torch.int32)
            got = torch.empty(n * count, dtype=torch.int32)
            dist.all_to_all_single(got, mine(n * count, torch.int32))
            same(got, torch.cat([t[rank * count : (rank + 1) * count] for t in every]))
        # Rank i sends i + 2 j + 1 rows of three to rank j.
        sent = [rank + 2 * j + 1 for j in range(n)]
        received = [i + 2 * rank + 1 for i in range(n)]
        rows = torch.arange(sum(sent) * 3).view(-1, 3) + 1000 * rank
        got = torch.empty(sum(received), 3, dtype=torch.int64)
        dist.all_to_all_single(got, rows, received, sent)
        for i, part in enumerate(got.split(received)):
            before = sum(i + 2 * j + 1 for j in range(rank))
            want = torch.arange(3 * before, 3 * (before + received[i])) + 1000 * i
            same(part.flatten(), want)
        outs = [torch.empty(k, 3, dtype=torch.int64) for k in received]
        dist.all_to_all(outs, list(rows.split(sent)))
        same(torch.cat(outs), got)

    torch_ranks(3, body)


def test_sizes_that_differ_between_ranks(torch_ranks):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        parts = [torch.empty(i + 1, 2) for i in range(n)]
        dist.all_gather(parts, torch.full((rank + 1, 2), float(rank)))
        assert [p.tolist() for p in parts] == [[[i, i]] * (i + 1) for i in range(n)]
        got = torch.empty(rank + 1)
        dist.reduce_scatter(got, [torch.full((i + 1,), float(i)) for i in range(n)])
        assert got.tolist() == [rank * n] * (rank + 1)

    torch_ranks(3, body)


def test_many_tensors_in_one_call(torch_ranks):
    def body():
        n = dist.get_world_size()
        shapes = [(3,), (2, 5), (400_000,), (1,), (7, 1, 2)]
        ours = [mine(torch.Size(s).numel(), salt=i).view(s) for i, s in enumerate(shapes)]
        ours.append(mine(9, torch.int64))
        with dist._coalescing_manager():
            for tensor in ours[:5]:
                dist.all_reduce(tensor)
        dist.all_reduce_coalesced(ours[5:])
        for i, shape in enumerate(shapes):
            same(ours[i], sum(all_ranks(ours[i].numel(), salt=i)).view(shape))
        same(ours[5], sum(all_ranks(9, torch.int64)))
        gathered = [torch.empty(n * k) for k in (4, 6)]
        with dist._coalescing_manager(async_ops=True) as together:
            for out, count in zip(gathered, (4, 6), strict=True):
                dist.all_gather_into_tensor(out, mine(count))
        together.wait()
        for out, count in zip(gathered, (4, 6), strict=True):
            same(out, torch.cat(all_ranks(count)))
        block = torch.empty(5)
        with dist._coalescing_manager():
            dist.reduce_scatter_tensor(block, mine(5 * n))
        same(block, sum(all_ranks(5 * n))[5 * dist.get_rank() :][:5])

    torch_ranks(2, body)


def test_calls_in_a_batch_for_one_device(torch_ranks):
    """The older form of coalescing, of which the batch gives one Work."""

    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        swapped, last, got = torch.empty(n), mine(5), torch.empty(3)
        with dist._coalescing_manager(None, torch.device("cpu"), async_ops=True) as batch:
            dist.all_to_all_single(swapped, mine(n), async_op=True)
            dist.broadcast(last, n - 1, async_op=True)
            dist.isend(mine(3), (rank + 1) % n)
            dist.irecv(got, (rank - 1) % n)
        batch.wait()
        assert len(batch.works) == 1
        assert len(batch.works[0].result()) >= 3
        same(swapped, torch.stack([t[rank] for t in all_ranks(n)]))
        same(last, all_ranks(5)[n - 1])
        same(got, all_ranks(3)[(rank - 1) % n])

    torch_ranks(3, body)


def test_gloo_agrees_on_rooted_and_coalesced_calls(torch_ranks):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        agree(lambda g, t: dist.broadcast(t, 1, group=g), mine(33))
        agree(lambda g, o, t: dist.all_gather_into_tensor(o, t, group=g), torch.empty(2 * n),
              mine(2))  # fmt: skip
        agree(lambda g, o, t: dist.all_gather(o, t, group=g), [torch.empty(4)] * n, mine(4))
        agree(lambda g, t: dist.all_reduce_coalesced(t, group=g), [mine(3), mine(4, salt=1)])
        agree(lambda g, o, t: dist.all_to_all_single(o, t, group=g), torch.empty(n), mine(n))
        if rank == 0:
            agree(lambda g, o, t: dist.gather(t, o, dst=0, group=g), [torch.empty(2)] * n, mine(2))
        else:
            agree(lambda g, t: dist.gather(t, None, dst=0, group=g), mine(2))

    torch_ranks(2, body)


def test_all_gather_coalesced(torch_ranks):
    """Outputs are by rank, then by input; inputs may differ in size."""

    def body():
        n, sizes = dist.get_world_size(), (3, 1, 3)

        def call(group, *tensors):
            outs, inputs = [list(tensors[i : i + 3]) for i in range(0, 3 * n, 3)], tensors[3 * n :]
            dist.all_gather_coalesced(outs, list(inputs), group=group)

        agree(call, *[torch.zeros(size) for size in sizes * n],
              *[mine(size, salt=i) for i, size in enumerate(sizes)])  # fmt: skip
        future = dist.all_gather_coalesced([[torch.zeros(2)]] * n, [mine(2)], async_op=True)
        future.wait()
        group = dist.group.WORLD
        with pytest.raises(braid.InvalidArgument, match="asked for 2 lists"):
            group.allgather_coalesced([[torch.zeros(2)]], [mine(2)])
        with pytest.raises(braid.InvalidArgument, match="one tensor per input, 1"):
            group.allgather_coalesced([[torch.zeros(2)] * 2] * n, [mine(2)])

    torch_ranks(2, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_gloo_agrees_on_empty_tensors(torch_ranks, dtype):
    def body():
        n, none = dist.get_world_size(), torch.empty(0, dtype=dtype)
        at_root = [none] * n if dist.get_rank() == 0 else []
        agree(lambda g, o, t: dist.gather(t, o or None, dst=0, group=g), at_root, none)
        agree(lambda g, i, t: dist.scatter(t, i or None, src=0, group=g), at_root, none)
        agree(lambda g, o, t: dist.all_gather(o, t, group=g), [none] * n, none)
        if not dtype.is_floating_point:
            bitwise = none.clone()
            dist.all_reduce(bitwise, dist.ReduceOp.BXOR)
            same(bitwise, none)

    torch_ranks(2, body)


def test_objects(torch_ranks):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        every = [None] * n
        dist.all_gather_object(every, {"rank": rank, "text": "x" * rank * 100})
        assert [each["rank"] for each in every] == list(range(n))
        shared = [("a", 1), None] if rank == 1 else [None, None]
        dist.broadcast_object_list(shared, src=1)
        assert shared == [("a", 1), None]
        at_root = [None] * n if rank == 2 else None
        dist.gather_object(rank * 10, at_root, dst=2)
        given = [None]
        dist.scatter_object_list(given, [f"for {i}" for i in range(n)], src=0)
        return at_root, given[0]

    assert torch_ranks(3, body) == [
        (None, "for 0"),
        (None, "for 1"),
        ([0, 10, 20], "for 2"),
    ]


def test_functional_collectives(torch_ranks):
    """C++ calls the group for these, as it does for DTensor and compiled programs."""

    def body():
        import torch.distributed._functional_collectives as functional

        n, group = dist.get_world_size(), dist.group.WORLD
        total = functional.all_reduce(mine(6), "sum", group)
        same(functional.wait_tensor(total), sum(all_ranks(6)))
        whole = functional.all_gather_tensor(mine(4), 0, group)
        same(functional.wait_tensor(whole), torch.cat(all_ranks(4)))
        block = functional.reduce_scatter_tensor(mine(2 * n), "avg", 0, group)
        want = sum(all_ranks(2 * n))[2 * dist.get_rank() :][:2] / n
        assert torch.allclose(functional.wait_tensor(block), want)
        swapped = functional.all_to_all_single(mine(2 * n), None, None, group)
        assert functional.wait_tensor(swapped).numel() == 2 * n
        return functional.wait_tensor(functional.broadcast(mine(3), 1, group)).tolist()

    assert torch_ranks(2, body) == [[3, 8, 0]] * 2


def test_groups_methods_take_torchs_short_forms(torch_ranks):
    def body():
        group = dist.group.WORLD
        tensor = mine(4)
        group.allreduce(tensor, dist.ReduceOp.MAX).wait()
        same(tensor, torch.stack(all_ranks(4)).max(0).values)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        future = group.allreduce([mine(4)], options).get_future()
        same(future.wait()[0], sum(all_ranks(4)))
        last = mine(3)
        group.broadcast(last, 1).wait()
        same(last, all_ranks(3)[1])
        outs = [torch.empty(2), torch.empty(2)]
        group.allgather([outs], [mine(2)]).wait()
        same(torch.cat(outs), torch.cat(all_ranks(2)))

    torch_ranks(2, body)


def test_what_a_rank_can_see_to_be_wrong_is_said_at_the_call(torch_ranks):
    """Asynchronous calls too, before anything is sent: the next call is in order."""

    def body():
        two, three = torch.zeros(2), torch.zeros(3)
        at_root = [three] * 2 if dist.get_rank() == 0 else None
        wrong = [
            lambda: dist.all_gather_into_tensor(three, two, async_op=True),
            lambda: dist.all_gather([three, three], two, async_op=True),
            lambda: dist.all_gather([two], two, async_op=True),
            lambda: dist.reduce_scatter_tensor(two, three, async_op=True),
            lambda: dist.reduce_scatter(two, [three, three], async_op=True),
            lambda: dist.all_to_all_single(two, three, async_op=True),
            lambda: dist.all_to_all_single(two, two, [1, 1], [2, 1], async_op=True),
            lambda: dist.all_to_all([two], [two, two], async_op=True),
            # Blocks would be half an element, or one row and a half.
            lambda: dist.all_to_all_single(three[:1], three[1:2], async_op=True),
            lambda: dist.all_to_all_single(two[0], two[1], async_op=True),
            lambda: dist.all_to_all_single(torch.zeros(3, 2), torch.zeros(6), async_op=True),
            lambda: dist.all_to_all_single(torch.zeros(6), torch.zeros(3, 2), async_op=True),
        ]
        if dist.get_rank() == 0:
            wrong.append(lambda: dist.gather(two, at_root, dst=0, async_op=True))
            wrong.append(lambda: dist.scatter(two, at_root, src=0, async_op=True))
        for call in wrong:
            with pytest.raises(braid.InvalidArgument, match="asked for"):
                call()
        total = mine(4)
        dist.all_reduce(total)
        same(total, sum(all_ranks(4)))

    torch_ranks(2, body)


def test_tensors_of_functional_collectives(torch_ranks):
    """They wait for their call when they are used, also by a call of the other kind."""

    def body():
        import torch.distributed._functional_collectives as functional

        n, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD

        def ours(count=4):
            return functional.all_reduce(torch.ones(count), "sum", group)

        total = ours()
        dist.all_reduce(total)
        assert (total + 0).tolist() == [4] * 4
        dist.all_reduce(total, async_op=True).wait()
        assert (total + 0).tolist() == [8] * 4
        outs, whole = [torch.zeros(4) for _ in range(n)], torch.zeros(4 * n)
        dist.all_gather(outs, ours())
        dist.all_gather_into_tensor(whole, ours())
        assert torch.cat(outs).tolist() == whole.tolist() == [2] * 8
        block = torch.zeros(2)
        dist.reduce_scatter_tensor(block, ours())
        dist.all_to_all_single(swapped := torch.zeros(4), ours())
        dist.broadcast(ours(), 0)
        dist.gather(ours(), outs if rank == 0 else None, 0)
        if rank == 0:
            dist.send(ours(), 1)
        else:
            ours()
            dist.recv(swapped, 0)
        dist.barrier()
        return block.tolist(), swapped.tolist()

    assert torch_ranks(2, body) == [([4, 4], [2] * 4)] * 2


def test_fake_tensors_are_refused(torch_ranks):
    def body():
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(), pytest.raises(braid.Unsupported, match="FakeTensor"):
            dist.all_reduce(torch.ones(3))

    torch_ranks(2, body)


def test_the_profiler_sees_calls(torch_ranks):
    def body():
        got = torch.zeros(3)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(mine(3))
            work = dist.isend(mine(3), 1 - dist.get_rank())
            dist.recv(got, 1 - dist.get_rank())
            work.wait()
            dist.barrier()
        names = {event.key for event in profile.key_averages()}
        return sorted(name for name in names if name.startswith("braid:"))

    every = ["braid:all_reduce", "braid:barrier", "braid:recv", "braid:send"]
    assert torch_ranks(2, body) == [every] * 2
