"""One vLLM engine, all of it in this process: JSON lines in, JSON lines out. Between orders it goes
on stepping, as a server does.

    {"prompts": [[ids]], "max_tokens": n, "params": [kv_transfer_params or null]}
    {"tokens": [[ids]], "params": [kv_transfer_params or null]}
    {"corrupt": page}                   turns the sign of all that this page holds
    {"corrupt": page}
    {"held": 1}                         how many pages are not free
    {"held": pages}
"""

import json
import os
import select
import sys
from collections.abc import Iterator
from typing import Any


def orders(llm: Any) -> Iterator[dict[str, Any]]:
    """Lines of stdin; requests whose pages are still held are stepped meanwhile."""
    while True:
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            llm.llm_engine.step()
        line = sys.stdin.readline()
        if not line or (order := json.loads(line)).get("end"):
            return
        yield order


def corrupt(page: int) -> None:
    """What a control must catch: a prefiller's page that is not what it computed."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    group = get_kv_transfer_group()
    if hasattr(group, "connector_worker"):  # NIXL's connector
        for cache in group.connector_worker.device_kv_caches.values():
            cache[page] *= -1
        return
    for layer in group._worker._memory:
        layer.keep[page] *= -1


def held(llm: Any) -> int:
    """Pages that a request has, or that a decoder may still read."""
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())  # one is nobody's


def main() -> None:
    settings = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")  # vLLM prints to 1
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    connector = settings.pop("connector", None)
    llm = LLM(
        skip_tokenizer_init=True,
        dtype="float32",
        block_size=32,
        max_model_len=512,
        enforce_eager=True,
        seed=1,
        disable_log_stats=True,
        max_num_batched_tokens=256,
        kv_transfer_config=KVTransferConfig(**connector) if connector else None,
        **settings,
    )
    print(json.dumps({"ready": True}), file=out, flush=True)
    for order in orders(llm):
        if "corrupt" in order:
            corrupt(order["corrupt"])
            print(json.dumps(order), file=out, flush=True)
            continue
        if "held" in order:
            print(json.dumps({"held": held(llm)}), file=out, flush=True)
            continue
        sampling = [
            SamplingParams(
                temperature=0,
                max_tokens=order["max_tokens"],
                ignore_eos=True,
                detokenize=False,
                extra_args={"kv_transfer_params": params} if params else None,
            )
            for params in order["params"]
        ]
        prompts = [{"prompt_token_ids": ids} for ids in order["prompts"]]
        try:
            found = llm.generate(prompts, sampling, use_tqdm=False)
            answer = {
                "tokens": [list(one.outputs[0].token_ids) for one in found],
                "params": [one.kv_transfer_params for one in found],
                "reasons": [one.outputs[0].finish_reason for one in found],
            }
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
