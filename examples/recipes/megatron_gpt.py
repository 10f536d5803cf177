"""Megatron-Core's GPTModel of some 200e6 parameters in bfloat16: tensor or data parallel.

    braid run -n 2 examples/recipes/megatron_gpt.py --how tp                       # by NCCL
    env $(braid nccl-env) braid run -n 2 examples/recipes/megatron_gpt.py --how tp # by braid
    ... --how dp       # Megatron's DistributedDataParallel and distributed optimizer

tp: layers are cut over all ranks, with sequence parallelism; dp: every rank has the whole model and
a part of the optimizer. Layers are Megatron's own, without Transformer Engine. Prints every rank's
losses in hexadecimal. Needs megatron-core.
"""

import argparse
import os
from functools import partial

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as Megatron asks for, before CUDA
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # fused functions would be compiled for minutes

import torch
import torch.distributed as dist
from exact import make_deterministic
from gpt import Shape, batches
from megatron.core import __version__, parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from steps import WARM_STEPS, Steps, arguments, device_of


def config_of(args: argparse.Namespace, ranks: int) -> TransformerConfig:
    """Megatron's settings. What is fused by compiled code of other packages is off."""
    return TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.width,
        num_attention_heads=max(2, args.width // 128),
        tensor_model_parallel_size=ranks,
        sequence_parallel=ranks > 1,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        deterministic_mode=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        persist_layer_norm=False,
    )


class Norm(torch.nn.LayerNorm):
    """In Apex's place, which Megatron's own layers need where sequences are cut: every rank norms
    its part, so that the parameters' gradients must be summed.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


def layers_of(config: TransformerConfig) -> TransformerBlockSubmodules:
    """Megatron's local layers with norms of torch's."""
    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    return TransformerBlockSubmodules([layer] * config.num_layers, layer_norm=Norm)


def model_of(args: argparse.Namespace, ranks: int, device: torch.device):
    """Megatron's model in Megatron's DistributedDataParallel, which sums float32 gradients."""
    config = config_of(args, ranks)
    model = GPTModel(
        config,
        layers_of(config),
        vocab_size=256,
        max_sequence_length=args.context,
        share_embeddings_and_output_weights=False,
    )
    model = model.to(device=device, dtype=torch.bfloat16)
    reduced = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=args.how == "dp",
        use_distributed_optimizer=args.how == "dp",
    )
    return DistributedDataParallel(config, reduced, model)


def optimizer_of(args: argparse.Namespace, model):
    """Megatron's, over torch's AdamW where neither Apex nor Transformer Engine is."""
    return get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=args.lr,
            weight_decay=0.01,
            bf16=True,
            params_dtype=torch.bfloat16,
            clip_grad=1.0,
            use_distributed_optimizer=args.how == "dp",
        ),
        [model],
    )


def step(model, optimizer, text: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Forward, backward, Megatron's sums of gradients, AdamW."""
    rows, length = text.shape
    places = torch.arange(length, device=text.device).expand(rows, length)
    later = torch.ones(length, length, dtype=torch.bool, device=text.device).triu(1)
    model.zero_grad_buffer()
    optimizer.zero_grad()
    loss = model(text, places, later[None, None], labels=wanted).mean()
    loss.backward()
    finalize_model_grads([model])
    optimizer.step()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--how", choices=("tp", "dp"), default="tp")
    args = arguments(parser)
    make_deterministic(warn_only=True)
    device = device_of(args)
    dist.init_process_group("nccl")
    ranks = dist.get_world_size() if args.how == "tp" else 1
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    torch.manual_seed(0)
    model = model_of(args, ranks, device)
    optimizer = optimizer_of(args, model)
    shape = Shape(args.layers, args.width, 1, args.context)
    steps = Steps(device)
    own = parallel_state.get_data_parallel_rank()  # ranks of one cut model read the same text
    for text, wanted in batches(WARM_STEPS + args.steps, args.batch, shape, own, device):
        steps.take(partial(step, model, optimizer, text, wanted))
    parameters = ranks * sum(p.numel() for p in model.parameters())
    steps.tell(f"Megatron-Core {__version__}, {args.how}", parameters, args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
