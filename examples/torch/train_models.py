"""Data-parallel training of one of four models, as a user of PyTorch writes it.

    torchrun --nproc-per-node 4 examples/torch/train_models.py --model vgg --steps 20

The data is synthetic and the seeds are fixed, so two runs can be compared number by number. Each rank prints
a JSON line a step: ``step``, ``seconds``, ``loss`` of its own batch. Each ``--check`` steps it has the loss
of a batch that all ranks share, too, and a digest of the weights: both are the same on all ranks.

The model "device" is what training on a device such as a GPU is to the processor: its backward pass takes
time, and no processor.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 100
IMAGE = 32
WORDS = 1000
LENGTH = 32
BATCHES = 8
DEVICE_LAYERS = 24
DEVICE_S = 0.8
"""Of a backward pass of the model "device": as long as its gradients take at 200 Mbit/s."""


class Residual(nn.Module):
    """Two convolutions, with a way past them."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(ins, outs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outs),
            nn.ReLU(),
            nn.Conv2d(outs, outs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outs),
        )
        self.past = nn.Identity() if ins == outs else nn.Conv2d(ins, outs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.past(x))


class Encoder(nn.Module):
    """A transformer encoder that classifies sequences of words."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classes = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.classes(self.layers(self.words(x) + self.places).mean(1))
        return found


class OnDevice(nn.Module):
    """A layer whose backward pass takes ``seconds`` and no processor."""

    def __init__(self, layer: nn.Module, seconds: float) -> None:
        super().__init__()
        self.layer = layer
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        if found.requires_grad:
            found.register_hook(self._wait)
        return found

    def _wait(self, _: Tensor) -> None:
        time.sleep(self.seconds)


def vgg(scale: float) -> nn.Module:
    """Few convolutions, then dense layers that have nearly all weights; 4.3 million at scale 1."""
    width, dense = round(32 * scale), round(1280 * scale)
    layers: list[nn.Module] = []
    ins = 3
    for outs in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(ins, outs, 3, 2, 1), nn.ReLU()]
        ins = outs
    layers += [nn.Flatten(), nn.Linear(ins * (IMAGE // 8) ** 2, dense), nn.ReLU()]
    layers += [nn.Linear(dense, dense), nn.ReLU(), nn.Linear(dense, CLASSES)]
    return nn.Sequential(*layers)


def resnet(scale: float) -> nn.Module:
    """Convolutions alone: many operations for each weight; 2.8 million at scale 1."""
    width = round(32 * scale)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    ins = width
    for outs in (width, 2 * width, 4 * width, 8 * width):
        layers += [Residual(ins, outs, 1 if ins == outs else 2), Residual(outs, outs, 1)]
        ins = outs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, CLASSES))


def transformer(scale: float) -> nn.Module:
    """Attention over 32 words, four layers; 3.5 million weights at scale 1."""
    return Encoder(4 * round(64 * scale), 4)


def device(scale: float) -> nn.Module:
    """Dense layers that a device computes; 4.6 million weights at scale 1."""
    width, seconds = round(432 * scale), DEVICE_S / DEVICE_LAYERS
    layers: list[nn.Module] = [nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * (IMAGE // 8) ** 2, width)]
    for _ in range(DEVICE_LAYERS):
        layers += [OnDevice(nn.Linear(width, width), seconds), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


MODELS = {"vgg": vgg, "resnet": resnet, "transformer": transformer, "device": device}
BUCKETS_MB = {"device": 1.0}
"""A model with as many buckets as VGG-16 has by torch's default, 25 MB; others have that default."""


class SumOfWeights(nn.Module):
    """What is left of a model without its computation: each weight has the gradient 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([weight.sum() for weight in self.model.parameters()]).sum()


def batches(model: str, size: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Made-up pictures or sentences with made-up classes, used in turns."""
    random = torch.Generator().manual_seed(seed)

    def inputs() -> Tensor:
        if model == "transformer":
            return torch.randint(WORDS, (size, LENGTH), generator=random)
        return torch.randn(size, 3, IMAGE, IMAGE, generator=random)

    return [(inputs(), torch.randint(CLASSES, (size,), generator=random)) for _ in range(BATCHES)]


def digest(model: nn.Module) -> str:
    """Equal if and only if all weights are, bit for bit."""
    found = hashlib.blake2b(digest_size=16)
    for weight in model.parameters():
        found.update(memoryview(weight.detach().contiguous().numpy()).cast("B"))
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="vgg")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank in a step")
    parser.add_argument("--scale", type=float, default=1.0, help="of widths: weights grow with its square")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
    parser.add_argument("--bucket", type=float, help="MiB of DDP's buckets")
    parser.add_argument("--check", type=int, default=10, help="steps from digest to digest")
    parser.add_argument(
        "--communication-only",
        action="store_true",
        help="gradients that cost nothing: how long their sum takes",
    )
    told = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = MODELS[told.model](told.scale)
    mine, shared = batches(told.model, told.batch, 100 + rank), batches(told.model, told.batch, 99)[0]
    trained = DistributedDataParallel(
        SumOfWeights(model) if told.communication_only else model,
        bucket_cap_mb=told.bucket or BUCKETS_MB.get(told.model),
    )
    optimizer = torch.optim.SGD(model.parameters(), told.rate, momentum=0.9)
    parameters = sum(weight.numel() for weight in model.parameters())
    hello = {
        "rank": rank,
        "ranks": dist.get_world_size(),
        "parameters": parameters,
        "bucket_mib": trained.bucket_bytes_cap / (1 << 20),
        "torch": torch.__version__,
    }
    print(json.dumps({**hello, "backend": dist.get_backend()}), flush=True)

    for step in range(1, told.steps + 1):
        began = time.perf_counter()
        inputs, classes = mine[step % BATCHES]
        optimizer.zero_grad()
        outputs = trained(inputs)
        loss = outputs if told.communication_only else nn.functional.cross_entropy(outputs, classes)
        loss.backward()
        if not told.communication_only:
            optimizer.step()
        line: dict[str, object] = {"step": step, "seconds": time.perf_counter() - began, "loss": loss.item()}
        if step % told.check == 0 or step == told.steps:
            with torch.no_grad():
                line["shared_loss"] = nn.functional.cross_entropy(model(shared[0]), shared[1]).item()
            line["digest"] = digest(model)
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    main()
