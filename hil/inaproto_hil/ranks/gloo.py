"""One rank of torch's gloo: a ring over TCP."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from inaproto_hil.ranks.stepping import Floats, RankPlan, serve


class Gloo:
    """Tensors of torch, in place."""

    version = f"torch {torch.__version__}"

    def __init__(self, plan: RankPlan, rank: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{plan.extra['store']}",
            rank=rank,
            world_size=plan.ranks,
            timeout=timedelta(seconds=plan.timeout_s),
        )

    def memory(self, elements: int) -> Floats:
        self._tensor = torch.zeros(elements, dtype=torch.float32)
        array: Floats = self._tensor.numpy()
        return array

    def all_reduce(self, parts: Sequence[slice]) -> None:
        works = [dist.all_reduce(self._tensor[part], async_op=True) for part in parts]
        for work in works:
            work.wait()

    def path(self) -> str:
        return ""

    def close(self) -> None:
        dist.destroy_process_group()


if __name__ == "__main__":
    told = RankPlan.decode(sys.argv[2])
    serve(told, int(sys.argv[1]), Gloo(told, int(sys.argv[1])))
