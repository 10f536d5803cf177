"""A block's parts against sums written out; and torch's against NumPy's where there is torch."""

import numpy as np
import pytest

from braid.plan.parallel.block import ATTENTION, MLP, Shape
from braid.probe.block import HostBlock, TorchBlock

SHAPE = Shape(tokens=5, hidden=12, heads=4, kv_heads=2, head_dim=3, intermediate=7)


def test_shapes_of_results():
    found = {part: x.shape for part, x in HostBlock(SHAPE, 1).results.items()}
    assert found == {
        "norm": (5, 12), "qkv": (5, 24), "attention": (5, 12), "out": (5, 12),
        "up": (5, 14), "activation": (5, 7), "down": (5, 12),
    }  # fmt: skip


def test_attention_looks_back_and_shares_keys():
    block = HostBlock(SHAPE, 1)
    qkv = block.results["qkv"].reshape(5, 8, 3)
    for head in range(4):
        key, value = qkv[:, 4 + head // 2], qkv[:, 6 + head // 2]
        for token in range(5):
            scores = [float(qkv[token, head] @ key[t]) / 3**0.5 for t in range(token + 1)]
            parts = np.exp(scores) / np.sum(np.exp(scores))
            wanted = sum(part * value[t] for t, part in enumerate(parts))
            found = block.results["attention"][token, 3 * head : 3 * head + 3]
            assert found == pytest.approx(wanted, abs=1e-5)


def test_norm_and_activation():
    block = HostBlock(SHAPE, 1)
    total = block.x + block.y
    root = np.sqrt(np.mean(total[3] ** 2) + 1e-5)
    assert block.results["norm"][3] == pytest.approx(total[3] / root, abs=1e-5)
    gate, up = block.results["up"][2, 1], block.results["up"][2, 8]
    assert block.results["activation"][2, 1] == pytest.approx(gate / (1 + np.exp(-gate)) * up)


def test_every_layer_has_weights_of_its_own():
    block = HostBlock(SHAPE, 3)
    results = []
    for layer in range(3):
        block.run("qkv", layer)
        results.append(block.results["qkv"].copy())
    assert not np.allclose(results[0], results[1])
    assert not np.allclose(results[1], results[2])
    block.run("qkv", 0)
    assert np.array_equal(block.results["qkv"], results[0])


def test_torch_computes_the_same():
    torch = pytest.importorskip("torch")
    ours = HostBlock(SHAPE, 2)
    theirs = TorchBlock(SHAPE, 2, device="cpu", dtype="float32")
    theirs.x, theirs.y = torch.from_numpy(ours.x), torch.from_numpy(ours.y)
    theirs.weights = [{k: torch.from_numpy(w) for k, w in one.items()} for one in ours.weights]
    for layer in (0, 1):
        for part in (*ATTENTION, *MLP):
            ours.run(part, layer)
            theirs.run(part, layer)
            found = theirs.results[part].numpy()
            assert found == pytest.approx(ours.results[part], abs=1e-4), part
    theirs.wait()
