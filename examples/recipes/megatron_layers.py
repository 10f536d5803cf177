"""Megatron-Core's column- and row-parallel layers on CPUs, over the backend that is named.

    braid run -n 2 examples/recipes/megatron_layers.py braid
    braid run -n 2 examples/recipes/megatron_layers.py gloo

The process group is made before Megatron is told of it, so that Megatron's own groups are of the
same backend. Prints every loss of every rank in hexadecimal: with two ranks they are the same by
both. Needs megatron-core; a whole model of Megatron's needs GPUs.
"""

import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import nn

import braid.torch  # noqa: F401  makes "braid" a backend

STEPS, ROWS = 8, 60


def layers(ranks: int):
    """Two layers whose hidden numbers are cut over the ranks."""
    config = ModelParallelConfig(tensor_model_parallel_size=ranks, use_cpu_initialization=True)
    common = {"config": config, "init_method": nn.init.xavier_normal_, "bias": True}
    up = tensor_parallel.ColumnParallelLinear(64, 48, gather_output=False, **common)
    down = tensor_parallel.RowParallelLinear(
        48, 10, input_is_parallel=True, skip_bias_add=False, **common
    )
    return up, down


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1])
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    assert dist.get_backend(parallel_state.get_tensor_model_parallel_group()) == sys.argv[1]
    torch.manual_seed(0)
    up, down = layers(dist.get_world_size())
    optimizer = torch.optim.AdamW([*up.parameters(), *down.parameters()], lr=0.01)
    dice = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(ROWS, 64, generator=dice)
        scores = down(torch.tanh(up(x)[0]))[0]
        loss = nn.functional.cross_entropy(scores, x[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    print(f"rank {dist.get_rank()}: {' '.join(losses)}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
