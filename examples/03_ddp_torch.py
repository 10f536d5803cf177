"""Train a small network on scikit-learn's 1,797 handwritten digits with DistributedDataParallel.

The same training by braid and by Gloo, in one program: the process group's backend is all that
differs. With two ranks a sum has one order, so the losses of every step are equal to the last bit.
Run: braid run -n 2 examples/03_ddp_torch.py
 or: torchrun --nproc-per-node 2 examples/03_ddp_torch.py
"""

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import braid.torch  # noqa: F401  makes "braid" a backend

BATCH, EPOCHS, TEST = 120, 6, 297
pixels, labels = (torch.tensor(a) for a in load_digits(return_X_y=True))
pixels = pixels.float() / 16
shuffled = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
train, test = shuffled[TEST:], shuffled[:TEST]


def training(group):
    """The loss of every step, averaged over the ranks, and the accuracy on the test digits."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for epoch in range(EPOCHS):
        order = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))]
        for batch in order.split(BATCH):
            mine = batch[rank::size]
            loss = nn.functional.cross_entropy(model(pixels[mine]), labels[mine])
            loss.backward()  # DDP averages the gradients here, bucket by bucket
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total, group=group)
            losses.append(total.item() / size)
    with torch.no_grad():
        guesses = model(pixels[test]).argmax(1)
    return losses, (guesses == labels[test]).float().mean().item()


torch.set_num_threads(1)
dist.init_process_group("braid")  # Gloo only beside it, to compare
ours, accuracy = training(dist.group.WORLD)
theirs, _ = training(dist.new_group(backend="gloo"))
gap = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
if dist.get_rank() == 0:
    print(f"{len(ours)} steps: loss {ours[0]:.4f} to {ours[-1]:.4f}, accuracy {accuracy:.1%}")
    print(f"largest gap to Gloo's loss in any step: {gap:.3g}")
dist.destroy_process_group()
sys.exit(0 if gap < 1e-3 and accuracy > 0.9 else 1)
