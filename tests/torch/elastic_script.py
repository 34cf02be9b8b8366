"""A training under torchrun, one rank of which is killed: ``torchrun ... tests/torch/elastic_script.py``.

Rank 1 kills itself in the first incarnation. The second one begins anew: a script that kept checkpoints would
go on from the last of them.
"""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.torch.cases import batch, digest_of, loss_of, network, trained_alone

STEPS = 6


def main() -> None:
    dist.init_process_group("gloo")
    rank, incarnation = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, batch(rank, step)).backward()
        optimizer.step()
        if step == 3 and rank == 1 and incarnation == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    is_right = digest_of(model) == trained_alone(dist.get_world_size(), STEPS)
    print(f"rank {rank} incarnation {incarnation} right {is_right}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
