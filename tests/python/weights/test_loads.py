"""Models' own loads, recorded: loaders written as vLLM's are, cut for tensor parallelism."""

import threading

import numpy as np
import pytest
from engine_peers import options

import braid
from braid import weights

torch = pytest.importorskip("torch")

from braid.weights.doors.dtensors import parameter_of, parameters_of  # noqa: E402
from braid.weights.doors.loads import recorded  # noqa: E402
from braid.weights.stream import _parts  # noqa: E402

LIMIT_S = 30
WIDTH, INNER, HEADS, KV_HEADS, HEAD, EXPERTS, VOCAB = 12, 20, 4, 2, 6, 4, 30


def parameter(*shape):
    return torch.nn.Parameter(torch.full(shape, float("nan")))


class Model(torch.nn.Module):
    """A rank's part: q, k and v in one matrix, gate and up in one, experts in one, a matrix that
    lies turned, a vocabulary with room to spare.
    """

    def __init__(self, rank, tp):
        super().__init__()
        self.rank, self.tp = rank, tp
        self.embed = parameter(VOCAB // tp + 2, WIDTH)
        self.qkv = parameter((HEADS + 2 * KV_HEADS) * HEAD // tp, WIDTH)
        self.gate_up = parameter(EXPERTS, 2 * INNER // tp, WIDTH)
        self.down = parameter(EXPERTS, WIDTH, INNER // tp)
        self.out = parameter(HEADS * HEAD // tp, WIDTH)
        self.norm = parameter(WIDTH)
        self.register_buffer("scale", torch.zeros(1))

    def part(self, tensor, axis):
        each = tensor.shape[axis] // self.tp
        return tensor.narrow(axis, self.rank * each, each)

    def load_weights(self, named):
        for name, tensor in named:
            getattr(self, "load_" + name.split(".")[0])(tensor, name)

    def load_embed(self, tensor, _):
        part = self.part(tensor, 0)
        self.embed.data[: len(part)].copy_(part)
        self.embed.data[len(part) :].fill_(0)

    def load_attention(self, tensor, name):
        begins = {"q": 0, "k": HEADS, "v": HEADS + KV_HEADS}
        part = self.part(tensor, 0)
        begin = begins[name.split(".")[1]] * HEAD // self.tp
        home = self.qkv.data.narrow(0, begin, len(part))
        assert home.shape == part.shape
        home.copy_(part.to(self.qkv.device).to(self.qkv.dtype))

    def load_experts(self, tensor, name):
        _, which, kind = name.split(".")
        if kind == "down":
            self.down.data[int(which)].copy_(self.part(tensor, 1))
            return
        half = self.gate_up.data[int(which)].chunk(2)[kind == "up"]
        half[...] = self.part(tensor, 0)

    def load_out(self, tensor, _):
        self.out.data.copy_(self.part(tensor, 1).t().contiguous())

    def load_norm(self, tensor, _):
        self.norm.data.copy_(tensor.view(-1))

    def load_bias(self, tensor, _):
        pass


def checkpoint():
    shapes = {"embed": (VOCAB, WIDTH), "out": (WIDTH, HEADS * HEAD), "norm": (1, WIDTH)}
    shapes |= {f"attention.{n}": (c * HEAD, WIDTH) for n, c in
               zip("qkv", (HEADS, KV_HEADS, KV_HEADS), strict=True)}  # fmt: skip
    for n in range(EXPERTS):
        shapes |= {f"experts.{n}.{kind}": (INNER, WIDTH) for kind in ("gate", "up")}
        shapes[f"experts.{n}.down"] = (WIDTH, INNER)
    return shapes | {"bias": (3,)}


def values(version):
    generator = torch.Generator().manual_seed(version)
    return {n: torch.randn(shape, generator=generator) for n, shape in checkpoint().items()}


def described(dtype=torch.float32):
    return [(name, shape, dtype) for name, shape in checkpoint().items()]


def same(model, other):
    return all(
        torch.equal(torch.nan_to_num(a, 7.0), torch.nan_to_num(b, 7.0))
        for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_boxes_bring_what_the_load_brings(tp, dtype):
    """Also of a checkpoint in another type: the record names the model's."""
    for rank in range(tp):
        model, loaded = Model(rank, tp), Model(rank, tp)
        found = recorded(model, described(dtype))
        assert found.unread == ["bias"]
        assert found.unwritten == ["scale"]
        assert model.qkv.isnan().all(), "a record changes nothing"
        loaded.load_weights(iter(values(1).items()))
        for each in found.parameters:
            box = tuple(slice(s, s + n) for s, n in zip(each.start, each.size, strict=True))
            place = each.array.as_strided(
                each.size, each.strides, each.array.storage_offset() + each.offset
            )
            place.copy_(values(1)[each.name][box])
        assert same(model, loaded)


def test_rows_of_four_trainers_into_two_models_that_were_recorded():
    """FSDP's rows to tensor-parallel ranks: the same memory as after their own loads."""
    engines = [braid.Engine(**options("local", f"e{n}")) for n in range(6)]
    shapes = {name: shape for name, shape in checkpoint().items() if name != "bias"}
    rows = [{} for _ in range(4)]
    senders = []
    for rank in range(4):
        mine = []
        for name, shape in shapes.items():
            for start, size in weights.boxes(shape, (4,), (rank,), [weights.Shard(0)]):
                rows[rank][name] = torch.zeros(size), slice(start[0], start[0] + size[0])
                mine.append(weights.Parameter(name, rows[rank][name][0], shape, start=start))
        senders.append(weights.Sender(engines[rank], rank, mine))
    models = [Model(rank, 2) for rank in range(2)]
    receivers = [
        weights.Receiver(
            engines[4 + rank], rank, recorded(models[rank], described()).parameters, mode=mode
        )
        for rank, mode in enumerate(("two buffers", "in place"))
    ]
    told = [side.describe() for side in (*senders, *receivers)]
    for side in (*senders, *receivers):
        side.join(told)
    for version in (1, 2):
        for rank in range(4):
            for name, (array, box) in rows[rank].items():
                array.copy_(values(version)[name][box])
        threads = [threading.Thread(target=s.update, args=(version, LIMIT_S)) for s in senders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        for rank, receiver in enumerate(receivers):
            receiver.wait(version, LIMIT_S)
            loaded = Model(rank, 2)
            loaded.load_weights(iter(values(version).items()))
            loaded.embed.data[VOCAB // 2 :].copy_(models[rank].embed.data[VOCAB // 2 :])
            assert same(models[rank], loaded)
    for side in (*senders, *receivers, *engines):
        side.close()


class Odd(torch.nn.Module):
    def __init__(self, load):
        super().__init__()
        self.w = parameter(4, 6)
        self.load = load

    def load_weights(self, named):
        for _, tensor in named:
            self.load(self.w.data, tensor)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (lambda w, t: w.copy_(t * 2), r"no copy: aten.mul.Tensor of 'x'"),
        (lambda w, t: w.copy_(torch.cat([t, t])[:4]), r"no copy: aten.cat.default of 'x'"),
        (lambda w, t: w.add_(t), r"no copy: aten.add_.Tensor of 'x'"),
        (lambda w, t: w.fill_(t[0, 0].item()), r"no copy: aten._local_scalar_dense.* of 'x'"),
        (lambda w, t: w.copy_(t[0]), r"'x': \(6,\) of torch.float32 is spread over \(4, 6\)"),
        (lambda w, t: w.clone().copy_(t), r"'x' is copied to memory that is no parameter's"),
        (lambda w, t: w.copy_(t[:1].expand(4, 6)), "stride of 0 is no boxes"),
    ],
)
def test_what_is_no_copy_is_named(load, words):
    with pytest.raises(braid.InvalidArgument, match=words):
        recorded(Odd(load), [("x", (4, 6), torch.float32)])


class Beside(torch.nn.Module):
    """Parameters that share a storage: one behind the other, and columns of one matrix."""

    def __init__(self):
        super().__init__()
        self.flat, self.wide = torch.full((20,), -1.0), torch.full((4, 6), -1.0)
        self.above = torch.nn.Parameter(self.flat[:8].view(2, 4))
        self.below = torch.nn.Parameter(self.flat[8:].view(3, 4))
        self.right = torch.nn.Parameter(self.wide[:, 4:])
        self.left = torch.nn.Parameter(self.wide[:, :4])
        self.none = torch.nn.Parameter(torch.zeros(0, 3))

    def load_weights(self, named):
        for name, tensor in named:
            for part, piece in enumerate(tensor.chunk(2)):
                getattr(self, name).data.chunk(2)[part].copy_(piece)

    def all(self):
        return {name: p.detach() for name, p in self.named_parameters()}


@pytest.mark.parametrize("mode", ["two buffers", "in place"])
def test_parameters_that_share_a_storage(mode):
    model = Beside()
    sent = {name: torch.rand(p.shape) for name, p in model.all().items()}
    found = recorded(model, [(name, tensor.shape, tensor.dtype) for name, tensor in sent.items()])
    assert (found.unread, found.unwritten) == ([], [])
    with (
        braid.Engine(**options("local", "t")) as ours,
        braid.Engine(**options("local", "w")) as theirs,
        weights.Sender(ours, 0, [weights.Parameter(*each) for each in sent.items()]) as sender,
        weights.Receiver(theirs, 0, found.parameters, mode=mode) as receiver,
    ):
        told = [sender.describe(), receiver.describe()]
        sender.join(told)
        receiver.join(told)
        sender.update(1, LIMIT_S)
    assert all(torch.equal(array, sent[name]) for name, array in model.all().items())


def test_a_copy_over_several_parameters_is_named():
    model = Beside()
    with pytest.raises(braid.InvalidArgument, match=r"'x' is copied to .*, or of several of \['a"):
        recorded(model, [("x", (20,), torch.float32)], lambda named: [
            model.flat.copy_(tensor) for _, tensor in named
        ])  # fmt: skip
    half = recorded(model, [("above", (2, 4), torch.float32)])
    assert half.unwritten == ["below", "left", "none", "right"]


def test_tied_parameters_and_what_is_loaded_twice():
    model = Odd(lambda w, t: (w[:2].copy_(t[:2]), w[:2].copy_(t[2:]), w[2:].copy_(t[2:])))
    model.again = model.w
    found = recorded(model, [("x", (4, 6), torch.float32)])
    assert [(each.start, each.offset) for each in found.parameters] == [((2, 0), 0), ((2, 0), 12)]
    assert found.unwritten == []


# --- the trainers' side: DTensors ---


@pytest.fixture
def ranks():
    """Makes this process each rank of a group in turn; nothing is sent."""
    distributed = torch.distributed

    def each(count):
        for rank in range(count):
            distributed.init_process_group("fake", rank=rank, world_size=count, store=fake_store())
            try:
                yield rank
            finally:
                distributed.destroy_process_group()

    return each


def at_home(whole, found, piece):
    box = tuple(slice(s, s + n) for s, n in zip(piece.start, piece.size, strict=True))
    array = found.array.numpy()
    view = np.lib.stride_tricks.as_strided(
        array.reshape(-1)[piece.offset :], piece.size, [4 * stride for stride in piece.strides]
    )
    return np.array_equal(view, whole.numpy()[box])


def test_placements_of_dtensors(ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    whole = torch.arange(9 * 10, dtype=torch.float32).reshape(9, 10)
    sizes = [(Shard(0), Shard(1)), (Shard(1), Replicate()), (Shard(0), Shard(0))]
    covered = np.zeros((len(sizes), 9, 10), int)
    for _ in ranks(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        for number, placements in enumerate(sizes):
            tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None)
            found = parameter_of("w", tensor)
            for piece in found.pieces(0) if found.array.numel() else ():
                assert at_home(whole, found, piece)
                covered[number][
                    tuple(slice(s, s + n) for s, n in zip(piece.start, piece.size, strict=True))
                ] += 1
        partial = torch.distributed.tensor.DTensor.from_local(whole, mesh, [Partial(), Replicate()])
        with pytest.raises(braid.InvalidArgument, match="parameter 'p': a placement of"):
            parameter_of("p", partial)
        assert parameter_of("plain", whole).pieces(0)[0].size == (9, 10)
    assert (covered[0] == 1).all()
    assert (covered[1] == 2).all()
    assert (covered[2] == 1).all()


def test_fsdp_over_tensor_parallelism():
    """FSDP cuts what tensor parallelism has cut: strided shards, whose parts are one box."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = torch.arange(16 * 4, dtype=torch.float32).reshape(16, 4)
    # One rank: torch keeps the place in the mesh that FSDP makes for a process's first group.
    torch.distributed.init_process_group("fake", rank=1, world_size=4, store=fake_store())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = torch.nn.Linear(4, 16, bias=False)
    cut = distribute_tensor(whole, mesh["tp"], [Shard(0)], src_data_rank=None)
    model.weight = torch.nn.Parameter(cut)
    fully_shard(model, mesh=mesh["dp"])
    (found,) = parameters_of(model.named_parameters())
    torch.distributed.destroy_process_group()
    (piece,) = found.pieces(0)
    assert (piece.start, piece.size) == ((8, 0), (4, 4))  # tp's second half, dp's first of it
    assert at_home(whole, found, piece)


def fake_store():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def test_a_dtensor_itself_is_refused_by_name(ranks):
    """Nothing lies at its own address: doors.dtensors asks for its part, full_tensor() gathers."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    for _ in ranks(1):
        tensor = DTensor.from_local(torch.ones(4, 4), init_device_mesh("cpu", (1,)))
        assert parameter_of("a", tensor).array.shape == (4, 4)
        words = r"parameter 'a': .* a DTensor on 'cpu' .*full_tensor"
        with pytest.raises(braid.InvalidArgument, match=words):
            weights.Parameter("a", tensor)
        with pytest.raises(braid.InvalidArgument, match=r"tensor 'a': .* a DTensor on 'cpu'"):
            list(_parts([("a", tensor)], 4096))
