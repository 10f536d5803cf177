"""A GPT by FSDP2 or by DDP, once for each contestant, all with the same parameters."""

import argparse
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from contest import Contest, Contestant
from gpt import Shape, SmallGpt
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from traffic import Call


@dataclass
class Trainee:
    """One contestant's model, and what its steps took and gave."""

    contestant: Contestant
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[torch.Tensor] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)
    busy_us: list[float] = field(default_factory=list)

    def step(self, text: torch.Tensor, wanted: torch.Tensor) -> None:
        """One step of AdamW. The host waits for nothing."""
        is_mixed = isinstance(self.model, DistributedDataParallel)  # FSDP2 casts by itself
        with torch.autocast(text.device.type, torch.bfloat16, enabled=is_mixed):
            scores = self.model(text)
        loss = nn.functional.cross_entropy(scores.float().flatten(0, 1), wanted.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())

    def buckets(self) -> list[Call]:
        """The all-reduces of a step of DDP; its reducer calls the group from C++."""
        told = self.model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        counts = [int(nbytes) // torch.float32.itemsize for nbytes in told.split(", ")]
        return [Call("all_reduce", n, n, torch.float32, dist.ReduceOp.SUM) for n in counts]


def sharded(
    contestant: Contestant, shape: Shape, contest: Contest, reduce: torch.dtype
) -> nn.Module:
    """FSDP2, a layer a unit. Nobody ever holds all parameters."""
    with torch.device("meta"):
        model = SmallGpt(shape)
    mesh = DeviceMesh.from_group(contestant.group, contest.device.type)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=contest.device)
    fill(model, contest.rank)
    return model


def replicated(contestant: Contestant, shape: Shape, contest: Contest) -> nn.Module:
    """DDP: every rank holds everything."""
    with torch.device("meta"):
        model = SmallGpt(shape)
    model.to_empty(device=contest.device)
    fill(model, 0)
    return DistributedDataParallel(
        model, process_group=contestant.group, gradient_as_bucket_view=True
    )


def fill(model: nn.Module, seed: int) -> None:
    """What this rank holds: the same numbers for both contestants."""
    for i, (name, parameter) in enumerate(model.named_parameters()):
        with torch.no_grad():
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if parameter.ndim == 1:
                own.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            else:
                own.normal_(
                    std=0.02, generator=torch.Generator(own.device).manual_seed(1000 * i + seed)
                )


def trainees(args: argparse.Namespace, shape: Shape, contest: Contest) -> list[Trainee]:
    """One for each contestant."""
    made = []
    for each in contest.contestants:
        if args.how == "ddp":
            model = replicated(each, shape, contest)
        else:
            model = sharded(each, shape, contest, getattr(torch, args.reduce))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=not args.cpu)
        made.append(Trainee(each, model, optimizer))
    return made
