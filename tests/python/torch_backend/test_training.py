"""What people train with: DDP, FSDP2, tensor parallel, on CPU, step by step beside Gloo."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

datasets = pytest.importorskip("sklearn.datasets", reason="skipped: needs scikit-learn")
PIXELS, LABELS = (torch.tensor(a) for a in datasets.load_digits(return_X_y=True))
STEPS = 12


def network(inputs: int = 64, outputs: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 48), nn.Tanh(), nn.Linear(48, outputs))


def losses(model, batches) -> list[float]:
    """Of every step of a training with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = []
    for pixels, labels in batches:
        loss = nn.functional.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


def digits():
    """This rank's part of every batch of scikit-learn's digits."""
    pixels, labels = PIXELS.float() / 16, LABELS
    rank, n = dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        rows = torch.arange(step * 120, (step + 1) * 120)[rank::n]
        yield pixels[rows], labels[rows]


def both_backends(torch_ranks, ranks, body):
    ours, theirs = torch_ranks(ranks, body), torch_ranks(ranks, body, "gloo")
    assert all(len(each) == STEPS and each[-1] < each[0] for each in ours)
    return ours, theirs


@pytest.mark.parametrize("bucket_mb", [0.004, 25])
def test_ddp_on_digits_has_gloos_losses(torch_ranks, bucket_mb):
    """Equal to the bit with two ranks, where there is only one order of a sum."""

    def body():
        model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
        return losses(model, digits())

    ours, theirs = both_backends(torch_ranks, 2, body)
    assert ours == theirs


def test_ddp_keeps_all_ranks_alike(torch_ranks):
    def body():
        torch.manual_seed(dist.get_rank())
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 10))
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        losses(wrapped, digits())
        return [p.detach().view(torch.int32).sum().item() for p in model.parameters()]

    first, *others = torch_ranks(3, body)
    assert all(each == first for each in others)


def test_ddp_with_no_sync_and_a_comm_hook(torch_ranks):
    def body():
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = DistributedDataParallel(network())
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        batches = list(digits())
        with model.no_sync():
            nn.functional.cross_entropy(model(batches[0][0]), batches[0][1]).backward()
        return losses(model, batches)

    ours, theirs = both_backends(torch_ranks, 2, body)
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=0.02)


def sharded(mesh_shape, **options):
    def body():
        names = ("replicate", "shard")[-len(mesh_shape) :]
        mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
        model = network()
        fully_shard(model[0], mesh=mesh, **options)
        fully_shard(model[2], mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
        seen = losses(model, digits())
        whole = [p.full_tensor() for p in model.parameters()]
        assert all(torch.isfinite(p).all() for p in whole)
        return seen

    return body


def test_fsdp2_has_gloos_losses(torch_ranks):
    ours, theirs = both_backends(torch_ranks, 2, sharded((2,)))
    assert ours == theirs


def test_fsdp2_shards_unevenly_and_replicates(torch_ranks):
    ours, theirs = both_backends(torch_ranks, 3, sharded((3,), reshard_after_forward=False))
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    hybrid = torch_ranks(4, sharded((2, 2)))
    plain = torch_ranks(4, sharded((4,)))
    for a, b in zip(hybrid, plain, strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def test_fsdp2_with_another_divisor_and_accumulation(torch_ranks):
    """The divisor makes torch ask for PREMUL_SUM, which Gloo does not have."""

    def body():
        model = network()
        fully_shard(model)
        model.set_gradient_divide_factor(3.0)
        model.set_requires_gradient_sync(False)
        (x, y), *_ = digits()
        nn.functional.cross_entropy(model(x), y).backward()
        model.set_requires_gradient_sync(True)
        nn.functional.cross_entropy(model(x), y).backward()
        ours = [p.grad.full_tensor() for p in model.parameters()]
        alone = network()
        (2 * nn.functional.cross_entropy(alone(x), y)).backward()
        for p, got in zip(alone.parameters(), ours, strict=True):
            want = p.grad.clone()
            dist.all_reduce(want)
            assert torch.allclose(got, want / 3, atol=1e-6)

    torch_ranks(2, body)


def test_tensor_parallel(torch_ranks):
    def body():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        x = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
        alone, model = network(), network()
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        got, want = model(x), alone(x)
        assert torch.allclose(got, want, atol=1e-5)
        got.sum().backward()
        want.sum().backward()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(ours.grad.full_tensor(), theirs.grad, atol=1e-5)

    torch_ranks(3, body)


def test_distributed_tensors(torch_ranks):
    def body():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        whole = torch.arange(30.0).view(5, 6)
        split = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        assert torch.equal(split.full_tensor(), whole)
        swapped = split.redistribute(mesh, [Shard(1), Shard(0)])
        assert torch.equal(swapped.full_tensor(), whole)
        return (split * 2).sum().full_tensor().item()

    assert torch_ranks(4, body) == [870] * 4


def test_a_checkpoint_of_shards(torch_ranks, tmp_path):
    def body():
        import torch.distributed.checkpoint as checkpoint

        model, other = network(), network()
        fully_shard(model)
        fully_shard(other)
        losses(model, list(digits())[:2])
        checkpoint.save(model.state_dict(), checkpoint_id=tmp_path)
        state = other.state_dict()
        checkpoint.load(state, checkpoint_id=tmp_path)
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(a.full_tensor(), b.full_tensor())

    torch_ranks(2, body)


def test_a_pipeline_of_two_stages(torch_ranks):
    """torch's own schedules, whose activations and gradients are messages."""

    def body():
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        rank, n = dist.get_rank(), dist.get_world_size()
        alone = network()
        part = (alone[:2], alone[2:])[rank]
        stage = PipelineStage(part, rank, n, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.cross_entropy)
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(3))
        y = torch.arange(16) % 10
        told = []
        schedule.step(*([x] if rank == 0 else []), target=y if rank else None, losses=told)
        other = network()
        nn.functional.cross_entropy(other(x), y).backward()
        wanted = list((other[:2], other[2:])[rank].parameters())
        for p, want in zip(part.parameters(), wanted, strict=True):
            assert torch.allclose(p.grad, want.grad, atol=1e-5)
        return len(told)

    assert torch_ranks(2, body) == [0, 4]
