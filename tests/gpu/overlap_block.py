"""Parallel layers as parts of models: a block of Llama 70B's shape and the training of a small GPT,
by ColumnParallelLinear and RowParallelLinear, beside plain torch and float64.

    braid run -n 2 tests/gpu/overlap_block.py                       a rank per GPU
    braid run -n 2 tests/gpu/overlap_block.py --share --json b.json all ranks on the first GPU
    braid run -n 2 tests/gpu/overlap_block.py --cpu                 small and in float32; seconds

The block is computed three times from the same numbers: by braid's layers, by plain torch whose
sums over ranks are what a collective of the dtype makes of them (parts rounded), and in float64.
`end to end` compares the gradients of all parameters and of the input: what roundings of a block's
other operations leave. `by layer` compares each parallel layer alone with float64 from what it was
given, forwards and backwards: the contract of braid.overlap.

Calls go the kernels' way, whatever tuning would choose, but for --tuned. Exit code 1: a layer is
off by more than the contract, or a gradient by more than it and by more than plain torch's, or a
curve of losses by more than its bound.
"""

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import braid
from braid.bench import facts
from braid.overlap import operations
from braid.overlap.tuner import SEQUENTIAL
from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

MOST_ERROR = 4e-3  # of the contract, against float64
BESIDE_PLAIN = 1.1  # end to end: of plain torch's error
MOST_GAP = {torch.bfloat16: 0.01, torch.float32: 1e-4}  # of losses, mean of the last steps
WORDS = 256


class Norm(nn.Module):
    def __init__(self, width, make):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, **make))

    def forward(self, x):
        wide = x.float() if x.dtype != torch.float64 else x
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return scaled.to(x.dtype) * self.weight


class Whole(nn.Linear):
    """On one rank; what it gives is the sum of `parts` rounded products over columns of x."""

    def __init__(self, features_in, features_out, parts, make):
        super().__init__(features_in, features_out, bias=False, **make)
        self.parts = parts

    def forward(self, x):
        pairs = zip(x.chunk(self.parts, -1), self.weight.chunk(self.parts, 1), strict=True)
        return sum(nn.functional.linear(a, w) for a, w in pairs)


class Block(nn.Module):
    """[s, batch, width], or this rank's part of s. `column` and `row` make the layers."""

    def __init__(self, shape, ranks, column, row, make):
        super().__init__()
        self.heads, self.groups = shape["heads"] // ranks, shape["groups"] // ranks
        self.head = shape["width"] // shape["heads"]
        width, between = shape["width"], shape["between"]
        self.before, self.behind = Norm(width, make), Norm(width, make)
        self.qkv = column(width, (shape["heads"] + 2 * shape["groups"]) * self.head)
        self.out = row(width, width)
        self.up = column(width, 2 * between)
        self.down = row(between, width)

    def forward(self, x):
        x = x + self.out(self.attend(self.qkv(self.before(x))))
        gate, up = self.up(self.behind(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)

    def attend(self, qkv):
        s, batch, _ = qkv.shape
        sizes = [self.heads * self.head, self.groups * self.head, self.groups * self.head]
        q, k, v = (
            t.view(s, batch, -1, self.head).permute(1, 2, 0, 3) for t in qkv.split(sizes, -1)
        )
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        score = q @ k.transpose(-1, -2) * self.head**-0.5
        mask = torch.ones(s, s, dtype=torch.bool, device=qkv.device).triu(1)
        weigh = score.float() if score.dtype != torch.float64 else score
        y = weigh.masked_fill(mask, float("-inf")).softmax(-1).to(v.dtype) @ v
        return y.permute(2, 0, 1, 3).reshape(s, batch, -1)


def parts_of(shape, name, ranks):
    """Rows of a column-parallel weight by rank: its heads, or its parts of gate and of up."""
    head = shape["width"] // shape["heads"]
    of = {
        "qkv": [shape["heads"] * head, shape["groups"] * head, shape["groups"] * head],
        "up": [shape["between"]] * 2,
    }[name]
    starts = [sum(of[:i]) for i in range(len(of))]
    return [
        torch.cat([torch.arange(at + r * n // ranks, at + (r + 1) * n // ranks)
                   for at, n in zip(starts, of, strict=True)])
        for r in range(ranks)
    ]  # fmt: skip


def whole_block(shape, parts, make):
    return Block(
        shape, 1,
        lambda i, o: Whole(i, o, 1, make), lambda i, o: Whole(i, o, parts, make), make,
    )  # fmt: skip


def cut_block(shape, comm, make):
    options = {"bias": False, **make}
    return Block(
        shape, comm.size,
        lambda i, o: ColumnParallelLinear(i, o, comm, **options),
        lambda i, o: RowParallelLinear(i, o, comm, **options), make,
    )  # fmt: skip


def mine(shape, comm, name, whole):
    """This rank's part of a parameter of the whole block."""
    layer = name.rsplit(".", 2)[-2]
    if layer in ("qkv", "up"):
        return whole[parts_of(shape, layer, comm.size)[comm.rank].to(whole.device)]
    if layer in ("out", "down"):
        return whole.chunk(comm.size, 1)[comm.rank]
    return whole


def draw(block, seed, device):
    """The same on every rank, rounded to the block's dtype."""
    made = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(block.named_parameters()):
            if name.endswith(("before.weight", "behind.weight", "end.weight")):
                continue
            scale = p.shape[-1] ** -0.5
            p.copy_(
                torch.randn(p.shape, generator=made, device=device, dtype=torch.float32) * scale
            )


def error(found, wanted):
    wanted = wanted.double()
    return float((found.double() - wanted).norm() / wanted.norm())


class Watch:
    """What one parallel layer was given and gave."""

    def __init__(self, layer):
        self.layer = layer
        layer.register_forward_hook(self.forward)
        layer.register_full_backward_hook(self.backward)

    def forward(self, _, given, y):
        self.x, self.y = given[0].detach(), y.detach()

    def backward(self, _, dx, dy):
        self.dx, self.dy = dx[0].detach(), dy[0].detach()

    def errors(self, comm):
        """Of y, dx and dw against float64, where the layer's sums over ranks are exact."""
        w = self.layer.weight.detach().double()
        flat = [t.reshape(-1, t.shape[-1]).contiguous() for t in (self.x, self.y, self.dx, self.dy)]
        x, y, dx, dy = flat
        if isinstance(self.layer, ColumnParallelLinear):
            x_all, dy_all = comm.all_gather(x).double(), dy.double()
            wanted_y, wanted_dx = x_all @ w.t(), comm.all_reduce(dy_all @ w)
            wanted_dx = wanted_dx.chunk(comm.size)[comm.rank]
        else:
            x_all, dy_all = x.double(), comm.all_gather(dy).double()
            wanted_y, wanted_dx = comm.all_reduce(x_all @ w.t()), dy_all @ w
            wanted_y = wanted_y.chunk(comm.size)[comm.rank]
        dw = self.layer.weight.grad
        return {
            "y": error(y, wanted_y), "dx": error(dx, wanted_dx), "dw": error(dw, dy_all.t() @ x_all)
        }  # fmt: skip


def most(comm, values):
    """Over the ranks; NaN stays."""
    table = {}
    for mine_of in comm.all_gather_object(values):
        for name, value in mine_of.items():
            table[name] = max(table.get(name, 0.0), value if value == value else 1e9)
    return table


def gradients(block, x, weigh):
    x = x.clone().requires_grad_()
    (block(x).to(weigh.dtype) * weigh).sum().backward()
    return {"x": x.grad, **{name: p.grad for name, p in block.named_parameters()}}


def compare(comm, shape, dtype, device, seed):
    """One block in one dtype."""
    make = {"dtype": dtype, "device": device}
    plain = whole_block(shape, comm.size, make)
    draw(plain, seed, device)
    made = torch.Generator(device=device).manual_seed(seed + 1)
    extent = (shape["s"], shape["batch"], shape["width"])
    x = torch.randn(*extent, generator=made, device=device).to(dtype)
    weigh = torch.randn(*extent, generator=made, device=device).to(dtype)
    of_plain = gradients(plain, x, weigh)

    cut = cut_block(shape, comm, make)
    with torch.no_grad():
        whole = dict(plain.named_parameters())
        for name, p in cut.named_parameters():
            p.copy_(mine(shape, comm, "block." + name, whole[name]))
    exact = whole_block(shape, 1, {**make, "dtype": torch.float64})
    exact.load_state_dict({name: p.double() for name, p in plain.state_dict().items()})
    del plain, whole
    of_exact = gradients(exact, x.double(), weigh.double())
    del exact

    watches = {n: Watch(getattr(cut, n)) for n in ("qkv", "out", "up", "down")}
    rows = slice(*(shape["s"] * r // comm.size for r in (comm.rank, comm.rank + 1)))
    ours = gradients(cut, x[rows].contiguous(), weigh[rows].contiguous())
    ends = {}
    for name, wanted in of_exact.items():
        norms = name.startswith(("before", "behind"))
        found = comm.all_reduce(ours[name].double()) if norms else ours[name]  # of this rank's rows
        right = wanted[rows] if name == "x" else mine(shape, comm, "block." + name, wanted)
        ends[f"{name}, braid"] = error(found, right)
        ends[f"{name}, plain torch"] = error(of_plain[name], wanted)
    layers = {}
    for name, watch in watches.items():
        layers.update({f"{name} {k}": v for k, v in watch.errors(comm).items()})
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "end_to_end": most(comm, ends),
        "by_layer": most(comm, layers),
    }


# ---- a small GPT ----


class Gpt(nn.Module):
    def __init__(self, shape, blocks, make):
        super().__init__()
        self.words = nn.Embedding(WORDS, shape["width"], **make)
        self.blocks = nn.ModuleList(blocks)
        self.end = Norm(shape["width"], make)

    def forward(self, text, wanted, count):
        """The sum of losses over these words by `count` of all."""
        x = self.words(text)
        for block in self.blocks:
            x = block(x)
        scores = (self.end(x) @ self.words.weight.t()).float()
        return nn.functional.cross_entropy(
            scores.flatten(0, 1), wanted.flatten(), reduction="sum"
        ) / (count)


def text_of(seed, shape, device):
    """Words of which each says most of what the next will be: there is something to learn."""
    made = torch.Generator().manual_seed(7)
    follows = torch.randint(0, WORDS, (WORDS, 2), generator=made)
    made = torch.Generator().manual_seed(1000 + seed)
    words = torch.randint(0, WORDS, (1, shape["batch"]), generator=made)
    for _ in range(shape["s"]):
        choice = torch.randint(0, 2, (shape["batch"],), generator=made)
        words = torch.cat([words, follows[words[-1], choice][None]])
    return words[:-1].to(device), words[1:].to(device)


class Trainee:
    """Parameters in the dtype, their masters in float32."""

    def __init__(self, model, rate):
        self.model = model
        self.masters = [p.detach().float().clone() for p in model.parameters()]
        self.optimizer = torch.optim.AdamW(self.masters, lr=rate, weight_decay=0.0)

    def step(self, loss, share):
        loss.backward()
        for (name, p), master in zip(self.model.named_parameters(), self.masters, strict=True):
            master.grad = share(name, p.grad.float())
        self.optimizer.step()
        with torch.no_grad():
            for p, master in zip(self.model.parameters(), self.masters, strict=True):
                p.copy_(master)
                p.grad = None


def train(comm, shape, dtype, device, steps):
    """Losses of both, step by step, and how far apart."""
    make = {"dtype": dtype, "device": device}
    plain = Gpt(shape, [whole_block(shape, comm.size, make) for _ in range(shape["layers"])], make)
    draw(plain, 11, device)
    cut = Gpt(shape, [cut_block(shape, comm, make) for _ in range(shape["layers"])], make)
    whole = dict(plain.named_parameters())
    with torch.no_grad():
        for name, p in cut.named_parameters():
            p.copy_(mine(shape, comm, name, whole[name]))
    cut_names = ("qkv.weight", "out.weight", "up.weight", "down.weight")

    def shared(name, grad):  # what is whole on every rank saw this rank's rows alone
        return grad if name.endswith(cut_names) else comm.all_reduce(grad)

    rows = slice(*(shape["s"] * r // comm.size for r in (comm.rank, comm.rank + 1)))
    rate = shape.get("rate", 1e-3)
    alone, ours = Trainee(plain, rate), Trainee(cut, rate)
    curves = {"plain torch": [], "braid": []}
    for step in range(steps):
        text, wanted = text_of(step, shape, device)
        loss = plain(text, wanted, text.numel())
        curves["plain torch"].append(float(loss.detach()))
        alone.step(loss, lambda _, grad: grad)
        loss = cut(text[rows].contiguous(), wanted[rows].contiguous(), text.numel())
        curves["braid"].append(float(comm.all_reduce(loss.detach().double())))
        ours.step(loss, shared)
    gaps = [abs(a - b) / a for a, b in zip(*curves.values(), strict=True)]
    last = gaps[-max(steps // 5, 1) :]
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "steps": steps,
        "losses": {name: [round(loss, 5) for loss in curve] for name, curve in curves.items()},
        "largest_gap": max(gaps),
        "gap_of_the_last_fifth": sum(last) / len(last),
    }


# ---- all of it ----

LLAMA = {"width": 8192, "between": 28672, "heads": 64, "groups": 8, "s": 512, "batch": 2}
SMALL = {"width": 64, "between": 96, "heads": 4, "groups": 2, "s": 16, "batch": 2}
GPT = {"width": 512, "between": 1024, "heads": 8, "groups": 8, "s": 128, "batch": 8, "layers": 4}
SMALL_GPT = {**SMALL, "layers": 1, "rate": 1e-2}


def kernels_way(_comm, ways, _calls):
    """The first way that is a kernel's: ranks that share a GPU would learn nothing by measuring."""
    return next(way for way in ways if way != SEQUENTIAL), {}


def faults(found, is_cpu):
    """What is off, in words."""
    for block in found["blocks"]:
        dtype = block["dtype"]
        for name, value in block["by_layer"].items():
            if not value < MOST_ERROR:
                yield f"{dtype}: {name} is off by {value:.1e}"
        ends = block["end_to_end"]
        for name, value in ends.items():
            plain = ends[name.split(",")[0] + ", plain torch"]
            if name.endswith("braid") and not value < max(MOST_ERROR, BESIDE_PLAIN * plain):
                yield f"{dtype}: {name} is off by {value:.1e}, plain torch by {plain:.1e}"
    gpt = found["gpt"]
    gap = gpt["gap_of_the_last_fifth"]
    if not gap < MOST_GAP[torch.float32 if is_cpu else torch.bfloat16]:
        yield f"losses are {gap:.1e} apart"
    curve = gpt["losses"]["braid"]
    if not curve[-1] < 0.9 * curve[0]:
        yield f"losses did not fall: {curve[0]} to {curve[-1]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.cpu:
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(0 if asked.share else int(os.environ.get("LOCAL_RANK", "0")))
    if not asked.tuned:
        operations.choose = kernels_way
    device = "cpu" if asked.cpu else "cuda"
    dtypes = (torch.float32,) if asked.cpu else (torch.bfloat16, torch.float16)
    block, gpt = (SMALL, SMALL_GPT) if asked.cpu else (LLAMA, GPT)
    with braid.init() as comm:
        seed = comm.broadcast_object(int.from_bytes(os.urandom(3), "big"))
        found = {
            "block": block,
            "blocks": [compare(comm, block, dtype, device, seed) for dtype in dtypes],
            "gpt_shape": gpt,
            "gpt": train(comm, gpt, dtypes[0], device, asked.steps),
        }
        kernels = operations._kernels_of(comm)
        found["ways"] = sorted({str(way) for way in kernels.ways.values()} if kernels else [])
        wrong = list(faults(found, asked.cpu))
        if comm.rank == 0:
            commit, dirty = facts.commit(asked.commit)
            record = {
                "schema": "braid.overlap_block/1",
                "command": " ".join(["braid run", f"-n {comm.size}", *sys.argv]),
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "commit": commit,
                "dirty": dirty,
                "device": "cpu" if asked.cpu else torch.cuda.get_device_name(),
                "ranks": comm.size,
                "shares_a_gpu": asked.share,
                "torch": torch.__version__,
                **found,
                "faults": wrong,
            }
            if asked.json:
                asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            show(record)
        return 1 if comm.broadcast_object(len(wrong)) else 0


def show(record):
    for block in record["blocks"]:
        worst = max(block["by_layer"].items(), key=lambda pair: pair[1])
        print(f"block, {block['dtype']}: worst of the layers {worst[0]}: {worst[1]:.2e}")
        for name, value in block["end_to_end"].items():
            print(f"  {name}: {value:.2e}")
    gpt = record["gpt"]
    last = {name: curve[-1] for name, curve in gpt["losses"].items()}
    print(
        f"gpt, {gpt['dtype']}, {gpt['steps']} steps: {last}, gap {gpt['gap_of_the_last_fifth']:.1e}"
    )
    print("\n".join(["WRONG " + text for text in record["faults"]]) or "overlap_block: right")


if __name__ == "__main__":
    sys.exit(main())
