"""A GPT of some 200e6 parameters by DeepSpeed's ZeRO, in bfloat16, as DeepSpeed's users have it.

    braid run -n 2 examples/recipes/deepspeed_gpt.py --stage 3                       # by NCCL
    env $(braid nccl-env) braid run -n 2 examples/recipes/deepspeed_gpt.py --stage 3 # by braid
    braid run -n 2 examples/recipes/deepspeed_gpt.py --stage 3 --cpu                 # by Gloo; tiny

Prints every rank's losses in hexadecimal. torchrun starts it as well. Needs deepspeed; torch's
AdamW is used, so that DeepSpeed compiles no operator of its own.
"""

import argparse
import os
import sys
from functools import partial

from steps import WARM_STEPS, Steps, arguments, device_of

# DeepSpeed asks when it is imported.
os.environ["DS_ACCELERATOR"] = "cpu" if "--cpu" in sys.argv else "cuda"

import deepspeed
import torch
import torch.distributed as dist
from exact import make_deterministic
from gpt import Shape, SmallGpt, batches


def config_of(args: argparse.Namespace) -> dict[str, object]:
    """DeepSpeed's own settings: all but the stage and the buckets as they are by default."""
    return {
        "train_micro_batch_size_per_gpu": args.batch,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": args.stage, "reduce_bucket_size": args.bucket},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    }


def engine_of(args: argparse.Namespace, shape: Shape, device: torch.device):
    """DeepSpeed's engine around the model; the same parameters on every rank."""
    torch.manual_seed(0)
    model = SmallGpt(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config_of(args))[0]


def step(engine, text: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Forward, backward, AdamW."""
    scores = engine(text)
    loss = torch.nn.functional.cross_entropy(scores.float().flatten(0, 1), wanted.flatten())
    engine.backward(loss)
    engine.step()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=3)
    parser.add_argument("--bucket", type=int, default=50_000_000, help="numbers reduced at once")
    args = arguments(parser, on_cpus=True)
    make_deterministic(warn_only=True)
    device = device_of(args)
    if args.cpu:  # DeepSpeed would compile an operator for inference here; training never calls it
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo" if args.cpu else "nccl")
    shape = Shape(args.layers, args.width, max(1, args.width // 128), args.context)
    parameters = sum(p.numel() for p in SmallGpt(shape).parameters())
    engine = engine_of(args, shape, device)
    steps = Steps(device)
    for text, wanted in batches(
        WARM_STEPS + args.steps, args.batch, shape, dist.get_rank(), device
    ):
        steps.take(partial(step, engine, text, wanted))
    steps.tell(
        f"DeepSpeed {deepspeed.__version__.strip()}, ZeRO {args.stage}", parameters, args.out
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
