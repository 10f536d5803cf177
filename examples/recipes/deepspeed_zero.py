"""DeepSpeed's ZeRO on CPUs, over the backend that is named: braid, or gloo to compare.

    DS_ACCELERATOR=cpu braid run -n 2 examples/recipes/deepspeed_zero.py braid 3    # ZeRO stage 3

Prints every loss of every rank in hexadecimal: with two ranks they are the same by both backends.
Needs deepspeed. DeepSpeed compiles a shared-memory operator of its own for CPUs when it starts,
which inference uses; it is left out here, as it takes minutes and training does not call it.
"""

import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import braid.torch  # noqa: F401  makes "braid" a backend

STEPS, ROWS = 8, 60


def engine(stage: int):
    """DeepSpeed's engine around a small network and torch's AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def main() -> None:
    backend, stage = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend=backend)
    assert dist.get_backend() == backend
    model = engine(stage)
    dice = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        x = torch.randn(ROWS, 64, generator=dice)
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        model.backward(loss)
        model.step()
        losses.append(loss.item().hex())
    print(f"rank {dist.get_rank()}, ZeRO {stage}: {' '.join(losses)}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
