"""A tiny FSDP training that any launcher of docs/launch.md can start; every rank ends with the same
checksum of all parameters, or with an error.

    torchrun --nproc-per-node 2 examples/launch/train.py

What torch needs to know it reads from RANK and WORLD_SIZE; Slurm and mpirun call them otherwise.
"""

import os
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import braid.torch  # noqa: F401  makes "braid" a backend

STEPS = int(os.environ.get("STEPS", "4"))
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def name_ranks() -> None:
    """RANK and WORLD_SIZE from launchers that are not torch's."""
    if "RANK" in os.environ:
        return
    for names in LAUNCHERS:
        if names[0] in os.environ:
            for ours, theirs in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK"), names, strict=True):
                os.environ[ours] = os.environ[theirs]
            return


def checksum(model: nn.Module) -> int:
    """Of all parameters, gathered from their shards."""
    found = 0
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found = zlib.crc32(whole.detach().cpu().numpy().tobytes(), found)
    return found


def main() -> None:
    name_ranks()
    torch.set_num_threads(1)
    dist.init_process_group("braid")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step * size + rank)
        loss = model(torch.randn(32, 256, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and STEPS > 100:
            print(f"step {step}", flush=True)
            time.sleep(0.02)
    own = checksum(model)
    everyone: list[int | None] = [None] * size
    dist.all_gather_object(everyone, own)
    if set(everyone) != {own}:
        sys.exit(f"rank {rank}: checksums differ: {everyone}")
    if rank == 0:
        print(f"{size} ranks, {STEPS} steps: checksum {own:08x}", flush=True)
    dist.destroy_process_group()


main()
