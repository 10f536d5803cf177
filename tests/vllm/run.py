"""Real vLLM on CPUs: one engine prefills, another one decodes; the tokens are those of one alone.

    run.py --pairs pull:1:1,push:1:1,nixl:1:1 --requests 200

A pair is transfer mode : tensor parallelism of the prefiller : of the decoder. "nixl" is vLLM's own
connector for NIXL over braid's plug-in, "ucx" the same over NIXL's UCX. For each pair: all
requests, the control (a corrupted page must be caught), and a prefiller that is killed (the decoder
computes for itself). scripts/test_vllm makes the environment.
"""

import argparse
import json
import os
import random
import select
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import model

ROOT = Path(__file__).parents[2]
LIMIT_S = 900
PAIRS = ("pull:1:1", "push:1:1", "pull:2:1", "push:1:2", "nixl:1:1", "nixl:2:1", "nixl:1:2")
NIXL = {"nixl": "BRAID", "ucx": "UCX"}
PLUGIN = "build/release/bindings/nixl/libplugin_BRAID.so"
UCX = "lib/python3*/site-packages/.nixl_cu1?.mesonpy.libs/plugins/libplugin_UCX.so"
REMOTE = {"do_remote_decode": True, "do_remote_prefill": False}


def _commit() -> str:
    """Of the tree, which may have another one when the run ends."""
    asked = ["git", "rev-parse", "HEAD"]
    return subprocess.run(
        asked, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


_COMMIT = _commit()


class Ended(SystemExit):
    """A server that is gone, or says nothing."""


class Server:
    """A process of server.py."""

    def __init__(self, name: str, folder: Path, tp: int, connector: dict[str, Any] | None) -> None:
        self.name = name
        self._log = (ROOT / f"build/vllm-{name}.log").open("w")
        settings = {
            "model": str(folder),
            "connector": connector,
            "tensor_parallel_size": tp,
            "distributed_executor_backend": "uni" if tp == 1 else "mp",
        }
        environment = {
            **os.environ,
            **_nixl(),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind" if tp == 1 else "0|1",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )

    def answer(self, limit_s: float = LIMIT_S) -> dict[str, Any]:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            raise Ended(f"test_vllm: {self.name} says nothing: build/vllm-{self.name}.log")
        line = self._process.stdout.readline()
        if not line:
            raise Ended(f"test_vllm: {self.name} has ended: build/vllm-{self.name}.log")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise SystemExit(f"test_vllm: {self.name}: {found['error']}")
        return found

    def tell(self, **order: Any) -> None:
        assert self._process.stdin
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise Ended(f"test_vllm: {self.name} has ended") from error

    def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(**order)
        return self.answer()

    def generate(self, prompts: list[list[int]], count: int, params: Any = None) -> dict[str, Any]:
        return self.ask(prompts=prompts, max_tokens=count, params=params or [None] * len(prompts))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def end(self) -> None:
        if self._process.poll() is None:
            assert self._process.stdin
            print('{"end": 1}', file=self._process.stdin, flush=True)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


def _nixl() -> dict[str, str]:
    """A folder with both plug-ins, and a port of its own for vLLM's side channel."""
    folder = ROOT / "build/vllm-plugins"
    folder.mkdir(parents=True, exist_ok=True)
    for plugin in (*ROOT.glob(PLUGIN), *Path(sys.prefix).glob(UCX)):
        link = folder / plugin.name
        link.unlink(missing_ok=True)
        link.symlink_to(plugin.resolve())
    return {
        "NIXL_PLUGIN_DIR": str(folder),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(_free_ports(4)),
        "UCX_TLS": "tcp,sm",
        "UCX_NET_DEVICES": "lo",
        "BRAID_LOG": "warn",
    }


def _free_ports(count: int) -> int:
    """The first of so many ports in a row, since every rank takes the next one: below those that
    the kernel gives to connections, which would take one meanwhile.
    """
    while True:
        first = 16 * random.randrange(20000 // 16, 32000 // 16)
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first


def connector(mode: str, **more: Any) -> dict[str, Any]:
    """more: of braid's extra configuration."""
    if mode in NIXL:
        return {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"backends": [NIXL[mode]]},
        }
    return {
        "kv_connector": "BraidConnector",
        "kv_connector_module_path": "braid.kv.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "side_channel_port": 0,
            "transfer_mode": mode,
            "kv_silence": 10,
            "engine": {"nics": "none"},
            **more,
        },
    }


def prompts_of(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    lengths = (1, 5, 31, 32, 33, 64, 100, 200, 400)
    return [
        [rng.randrange(3, model.VOCABULARY) for _ in range(rng.choice(lengths))]
        for _ in range(count)
    ]


def same(found: dict[str, Any], expected: dict[str, Any]) -> int:
    return sum(a == b for a, b in zip(found["tokens"], expected["tokens"], strict=True))


class Pair:
    """A prefiller and a decoder."""

    def __init__(self, folder: Path, mode: str, there: int, here: int) -> None:
        self.mode, self.there = mode, there
        name = f"{mode}-{there}-{here}"
        self.prefill = Server(f"prefill-{name}", folder, there, connector(mode))
        self.decode = Server(f"decode-{name}", folder, here, connector(mode))

    def ready(self) -> None:
        self.prefill.answer()
        self.decode.answer()

    def serve(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        told = self.prefill.generate(prompts, 1, [dict(REMOTE) for _ in prompts])
        return self.decode.generate(prompts, count, told["params"])

    def control(self, prompt: list[int], count: int) -> dict[str, Any]:
        told = self.prefill.generate([prompt], 1, [dict(REMOTE)])
        self.prefill.ask(corrupt=told["params"][0]["remote_block_ids"][0][0])
        return self.decode.generate([prompt], count, told["params"])

    def without_prefiller(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        told = self.prefill.generate(prompts, 1, [dict(REMOTE) for _ in prompts])
        self.prefill.kill()
        return self.decode.generate(prompts, count, told["params"])

    def end(self) -> None:
        self.prefill.end()
        self.decode.end()


def judge(pair: Pair, plain: Server, requests: int, tokens: int) -> dict[str, Any]:
    """What each part gave: how many of how many."""
    found: dict[str, Any] = {}
    prompts = prompts_of(requests, 1)
    began = time.monotonic()
    served = pair.serve(prompts, tokens)
    found["seconds"] = round(time.monotonic() - began, 2)
    found["same"] = [same(served, plain.generate(prompts, tokens)), requests]
    if pair.there == 1:
        # With weights like these attention looks at few tokens: of a long prompt one page may not
        # matter.
        controls = [p for p in prompts_of(80, 2) if 32 < len(p) <= 64][:8]
        caught = 0
        for prompt in controls:
            expected = plain.generate([prompt], tokens)
            caught += pair.control(prompt, tokens)["tokens"] != expected["tokens"]
        found["caught"] = [caught, len(controls)]
    lost = prompts_of(12, 3)
    expected = plain.generate(lost, tokens)
    found["without_prefiller"] = [same(pair.without_prefiller(lost, tokens), expected), len(lost)]
    return found


def record_of(runs: list[dict[str, Any]], schema: str = "braid.vllm/1") -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "schema": schema,
        "command": ["scripts/test_vllm", *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _COMMIT,
        "versions": {name: version(name) for name in ("vllm-cpu", "torch", "transformers", "nixl")},
        "machine": f"{os.cpu_count()} cores",
        "ranks": 2,
        "runs": runs,
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--pairs", default="pull:1:1,push:1:1,pull:2:1,push:1:2,nixl:1:1,nixl:2:1,nixl:1:2"
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = model.make(ROOT / "build/vllm-model")
    plain = Server("plain", folder, 1, None)
    found: dict[str, Any] = {}
    try:
        plain.answer()
        for words in options.pairs.split(","):
            mode, there, here = words.split(":")
            pair = Pair(folder, mode, int(there), int(here))
            try:
                pair.ready()
                found[words] = judge(pair, plain, options.requests, options.tokens)
                print(f"test_vllm: {words}: {json.dumps(found[words])}", flush=True)
            finally:
                pair.end()
    finally:
        plain.end()
    if options.json:
        runs = [{"pair": words, **parts} for words, parts in found.items()]
        options.json.write_text(json.dumps(record_of(runs), indent=1) + "\n")
    wrong = [
        f"{words} {part}"
        for words, parts in found.items()
        for part, pair_of in parts.items()
        if part != "seconds" and pair_of[0] != pair_of[1]
    ]
    print("test_vllm:", "FAILED: " + ", ".join(wrong) if wrong else "all tokens are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
