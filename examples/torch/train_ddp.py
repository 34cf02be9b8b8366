"""A classifier of handwritten digits, trained by PyTorch's DistributedDataParallel over gloo.

An ordinary script, as PyTorch's tutorials have them, for any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT::

    torchrun --nproc-per-node 4 examples/torch/train_ddp.py

Each rank prints a digest of its weights when it is through; rank 0 also prints the mean loss of each epoch.
The data are those of examples/digits.
"""

import argparse
import gzip
import hashlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DATA = Path(__file__).resolve().parents[1] / "digits" / "digits.csv.gz"


def digits() -> TensorDataset:
    """Images of 1 x 8 x 8 float32 in 0..1, and labels."""
    table = np.loadtxt(
        gzip.decompress(DATA.read_bytes()).decode().splitlines(), delimiter=",", dtype=np.uint8
    )
    images = torch.from_numpy(table[:, :64].astype(np.float32) / 16).reshape(-1, 1, 8, 8)
    return TensorDataset(images, torch.from_numpy(table[:, 64].astype(np.int64)))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 64, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(epochs: int, batch: int, rate: float) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = digits()
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / dist.get_world_size():.6f}", flush=True)
    digest = hashlib.sha256()
    for weights in model.parameters():
        digest.update(weights.detach().numpy().tobytes())
    print(f"rank {rank} weights {digest.hexdigest()[:16]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits on several ranks.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="samples of one rank in a step")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.epochs, options.batch, options.rate)
