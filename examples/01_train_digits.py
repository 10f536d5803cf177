"""Train a small network on scikit-learn's 1,797 handwritten digits, data-parallel over the ranks.

Every step, each rank computes the gradient of its part of the batch and braid sums the gradients
over all links. Three trainings from the same start show what "braid never changes a bit" means:
links shared as braid plans, links shared at random anew in every step, one link alone. Their
losses must be equal to the last bit, and as good as those of one process that sees the whole
batch. Run: braid run -n 4 examples/01_train_digits.py
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import braid

BATCH, EPOCHS, RATE, HIDDEN, TEST = 125, 12, 0.25, 64, 297
pixels, labels = load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)
shuffled = np.random.default_rng(0).permutation(len(pixels))
train, test = shuffled[TEST:], shuffled[:TEST]


def forward(weights, x):
    """Hidden layer [n, 64] and class probabilities [n, 10]."""
    hidden = np.tanh(x @ weights[0])
    scores = np.exp(hidden @ weights[1])
    return hidden, scores / scores.sum(1, keepdims=True)


def gradient(weights, rows):
    """Sums over `rows`: both gradients, and the loss, in one flat vector."""
    x, y = pixels[rows], labels[rows]
    hidden, p = forward(weights, x)
    loss = -np.log(p[np.arange(len(y)), y]).sum()
    p[np.arange(len(y)), y] -= 1
    back = (p @ weights[1].T) * (1 - hidden**2)
    return np.concatenate([(x.T @ back).ravel(), (hidden.T @ p).ravel(), [loss]], dtype=np.float32)


def training(rank, size, total):
    """Trains; `total(vector)` sums a vector over ranks.

    Returns the loss of every step and the test accuracy.
    """
    start = np.random.default_rng(1)
    weights = [
        start.normal(0, 0.1, shape).astype(np.float32) for shape in ((64, HIDDEN), (HIDDEN, 10))
    ]
    losses = []
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(train)
        for batch in order.reshape(-1, BATCH):
            summed = total(gradient(weights, np.array_split(batch, size)[rank])) / np.float32(BATCH)
            losses.append(summed[-1])
            first, second = np.split(summed[:-1], [weights[0].size])
            weights[0] -= np.float32(RATE) * first.reshape(weights[0].shape)
            weights[1] -= np.float32(RATE) * second.reshape(weights[1].shape)
    guesses = forward(weights, pixels[test])[1].argmax(1)
    return np.array(losses), float((guesses == labels[test]).mean())


with braid.init() as comm:
    dice, links = np.random.default_rng(2), len(comm.links)

    def random_shares(vector):
        comm._force_shares(dice.random(links) + 1e-3)
        return comm.all_reduce(vector)

    runs = {"links shared as planned": training(comm.rank, comm.size, comm.all_reduce)}
    runs["shares random in every step"] = training(comm.rank, comm.size, random_shares)
    comm._force_shares([1.0] + [0.0] * (links - 1))
    runs[f"{comm.links[0].name} alone"] = training(comm.rank, comm.size, comm.all_reduce)
    rank = comm.rank

if rank == 0:
    runs["one process, no braid"] = alone = training(0, 1, lambda vector: vector)
    for name, (losses, accuracy) in runs.items():
        last = losses[-1]
        bits = f"float32 bits {last.view(np.uint32):08x}"
        print(f"{name:28} last loss {last:.6f} ({bits}), accuracy {accuracy:.2%}")
    planned, *others, _ = runs.values()
    same = all(planned[0].tobytes() == losses.tobytes() for losses, _ in others)
    near = abs(planned[0][-1] / alone[0][-1] - 1) <= 1e-3 and planned[1] >= alone[1] - 0.005
    print(
        f"by braid, three ways: all {len(planned[0])} losses equal to the last bit:"
        f" {'yes' if same else 'NO'}"
    )
    print(
        "one process adds in another order, so that its bits may differ; as good as it, within"
        f" 0.1 % of its loss: {'yes' if near else 'NO'}"
    )
    sys.exit(0 if same and near else 1)
