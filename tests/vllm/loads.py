"""vLLM's own Llama and Mixtral, whose load_weights is recorded, against what it loads; each rank of
tensor parallelism a process.

    loads.py TP        all ranks; a line for each, an error for the first parameter that differs
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from model import SEED, VOCABULARY

from braid.launch import free_port

LIMIT_S = 300
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}


def checkpoints(folder: Path) -> dict[str, Path]:
    """A dense model and one of experts, as transformers saves them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    torch.manual_seed(SEED)
    made = {
        "llama": LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False)),
        "mixtral": MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4)),
    }
    for name, model in made.items():
        model.to(torch.float32).save_pretrained(folder / name)
    return {name: folder / name for name in made}


def model_of(folder: Path, tp: int, rank: int) -> Any:
    """vLLM's, without weights; the same call again makes another one."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.distributed.parallel_state import model_parallel_is_initialized
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = EngineArgs(
        model=str(folder), dtype="float32", tensor_parallel_size=tp, skip_tokenizer_init=True,
        enforce_eager=True, max_model_len=128, distributed_executor_backend="mp",
    ).create_engine_config()  # fmt: skip
    import torch

    with set_current_vllm_config(config), set_default_torch_dtype(torch.float32):
        if not model_parallel_is_initialized():
            init_distributed_environment(tp, rank, "env://", rank, "gloo")
            initialize_model_parallel(tp)
        return initialize_model(vllm_config=config)


def filled(model: Any) -> Any:
    """Of what no load touches, both models have the same."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(7)
    return model


def compare(name: str, folder: Path, tp: int, rank: int) -> dict[str, Any]:
    """Boxes of the record, filled from the checkpoint, beside the model's own load."""
    import torch
    from safetensors.torch import load_file

    from braid.weights.doors.loads import recorded

    weights = {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}
    ours, theirs = (filled(model_of(folder, tp, rank)) for _ in range(2))
    found = recorded(ours, [(n, t.shape, t.dtype) for n, t in weights.items()])
    theirs.load_weights(iter(weights.items()))
    for each in found.parameters:
        box = tuple(slice(s, s + n) for s, n in zip(each.start, each.size, strict=True))
        offset = each.array.storage_offset() + each.offset
        each.array.as_strided(each.size, each.strides, offset).copy_(weights[each.name][box])
    wrong = [
        key
        for (key, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True)
        if not torch.equal(a, b)
    ]
    loaded = [key for key, tensor in ours.named_parameters() if not (tensor == 7).all()]
    return {
        "model": name, "tp": tp, "rank": rank, "boxes": len(found.parameters),
        "unread": found.unread, "wrong": wrong, "loaded": len(loaded),
    }  # fmt: skip


def rank_main(name: str, folder: Path, tp: int, rank: int) -> None:
    out = os.fdopen(os.dup(1), "w")  # vLLM prints to 1
    os.dup2(2, 1)
    print(json.dumps(compare(name, folder, tp, rank)), file=out, flush=True)


def ranks_of(name: str, folder: Path, tp: int) -> bool:
    """One model, all ranks; each in a process, since vLLM makes its groups for one model."""
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "WORLD_SIZE": str(tp),
        "VLLM_DIST_IDENT": f"loads-{os.getpid()}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(tp), name, str(folder), str(rank)],
            stdout=subprocess.PIPE, text=True,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(tp)
    ]  # fmt: skip
    said = [process.communicate(timeout=LIMIT_S)[0] for process in ranks]
    found = [json.loads(line) for text in said for line in text.splitlines()]
    for each in found:
        print("loads:", json.dumps(each), flush=True)
    is_right = len(found) == tp and all(e["loaded"] and not e["wrong"] for e in found)
    return is_right and not any(process.returncode for process in ranks)


def main() -> int:
    tp = int(sys.argv[1])
    if len(sys.argv) > 2:
        rank_main(sys.argv[2], Path(sys.argv[3]), tp, int(sys.argv[4]))
        return 0
    with tempfile.TemporaryDirectory() as name:
        found = [ranks_of(*model, tp) for model in checkpoints(Path(name)).items()]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
