import sys, json, subprocess, os, random, time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
import model
root = Path(__file__).parents[2]
folder = model.make(root / "build/vllm-model")
env = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="WARNING", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
class S:
    def __init__(self, name, connector=None, **more):
        self.log = open(root / f"build/vllm-{name}.log", "w")
        self.p = subprocess.Popen([sys.executable, str(Path(__file__).parent/"server.py"), json.dumps(dict(model=str(folder), connector=connector, distributed_executor_backend='uni', **more))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env)
    def answer(self):
        return json.loads(self.p.stdout.readline())
    def ask(self, prompts, n, params=None):
        self.p.stdin.write(json.dumps(dict(prompts=prompts, max_tokens=n, params=params or [None]*len(prompts)))+"\n"); self.p.stdin.flush()
        return self.answer()
    def end(self):
        self.p.stdin.write('{"end":1}\n'); self.p.stdin.flush(); self.p.wait(60)
conn = lambda mode: dict(kv_connector="BraidConnector", kv_connector_module_path="braid.kv.vllm", kv_role="kv_both", kv_connector_extra_config=dict(side_channel_port=0, transfer_mode=mode, engine=dict(nics="none")))
mode = sys.argv[1] if len(sys.argv) > 1 else "pull"
t=time.time()
servers = {n: S(n, c) for n, c in (("plain", None), ("prefill", conn(mode)), ("decode", conn(mode)))}
for s in servers.values(): print(s.answer(), time.time()-t)
rng = random.Random(1)
prompts = [[rng.randrange(3, 512) for _ in range(rng.choice([5, 31, 32, 33, 64, 100, 200]))] for _ in range(12)]
plain = servers["plain"].ask(prompts, 12)["tokens"]
got = servers["prefill"].ask(prompts, 1, [dict(do_remote_decode=True, do_remote_prefill=False)]*len(prompts))
print(got["params"][0])
t=time.time()
out = servers["decode"].ask(prompts, 12, got["params"])
print(time.time()-t, out.get("error"), out.get("reasons"))
print(sum(a == b for a, b in zip(out["tokens"], plain)), "of", len(plain))
for s in servers.values(): s.end()
