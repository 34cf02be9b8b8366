"""Train on handwritten digits, data-parallel: one rank of a job, or all ranks in one process.

    train.py --rank 0 --size 4 --socket /path/of/the/host/daemon --out rank0.json
    train.py --one-process --size 4 --out reference.json

Both run the same loop. Each minibatch is cut into ``size`` shards; a shard's gradient is one float32
vector; the vectors are summed, divided by the size of the minibatch and applied. Between ranks the
sum is an all-reduce through the switch; in one process it is numpy, in rank order, left to right,
which is how inaproto defines a sum; where it is made in several places (on a host for its ranks, on the
switch of a rack, above the racks), ``--nested`` says the same to the one process. So the weights must come
out equal to the last bit, and the digest of the weights after every epoch says where they would first differ.

How long to train is ``--epochs``, or with ``--told`` what stdin says: ``epoch`` for each, then ``end``.

Stdout gets one JSON object per line: ``{"step": ...}`` for each step, for the parent's display.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np

from examples.digits import data, model
from inaproto.errors import InaprotoError

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained; all ranks and the reference must have the same."""

    seed: int = 1
    size: int = 4
    epochs: int = 30
    batch: int = 64
    hidden: tuple[int, ...] = (128, 64)
    rate: float = 0.05
    momentum: float = 0.9

    @property
    def layers(self) -> tuple[int, ...]:
        return (data.PIXELS, *self.hidden, data.CLASSES)


class GradientSum(Protocol):
    """Sums the shards' gradients; ``ranks`` are those that this process computes."""

    ranks: Sequence[int]

    def sum(self, gradients: list[model.Vector]) -> model.Vector: ...


Nested = Sequence["int | Nested"]
"""Where a sum is made: each list is added by itself, left to right."""


class OneProcess:
    """The exact reference: every shard here, added left to right, in float32; by default in rank order."""

    def __init__(self, size: int, nested: Nested | None = None) -> None:
        self.ranks: Sequence[int] = range(size)
        self._nested: Nested = range(size) if nested is None else nested
        if sorted(_leaves(self._nested)) != list(self.ranks):
            raise ValueError(f"{nested} must name each of the ranks 0..{size - 1} once")

    def sum(self, gradients: list[model.Vector]) -> model.Vector:
        return _add(self._nested, gradients)


def _leaves(nested: Nested) -> list[int]:
    """Raises ``ValueError`` for what is no list of ranks and of such lists, or holds an empty one."""
    if not isinstance(nested, list | tuple | range) or not nested:
        raise ValueError(f"{nested!r} is no list of ranks")
    leaves = []
    for part in nested:
        leaves += [part] if isinstance(part, int) else _leaves(part)
    return leaves


def _add(nested: Nested, gradients: list[model.Vector]) -> model.Vector:
    parts = [gradients[part] if isinstance(part, int) else _add(part, gradients) for part in nested]
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


class ThroughSwitch:
    """One rank; the sum is an all-reduce by the host daemon at ``socket``."""

    def __init__(self, *, job: str, rank: int, size: int, key: str, socket: Path, timeout_s: float) -> None:
        import inaproto

        self.ranks: Sequence[int] = (rank,)
        self._timeout_s = timeout_s
        self._communicator = inaproto.connect_blocking(
            job, rank, size=size, key=key, socket=str(socket), timeout=timeout_s
        )

    def sum(self, gradients: list[model.Vector]) -> model.Vector:
        total: model.Vector = self._communicator.all_reduce(gradients[0], op="sum").wait(self._timeout_s)
        return total

    def close(self) -> None:
        self._communicator.close()


@dataclass(frozen=True, slots=True)
class Step:
    step: int
    steps: int | None
    """Steps of the whole training; None while that is not known."""
    epoch: int
    loss: float
    """Mean over the minibatch, all ranks."""
    train_accuracy: float
    sum_s: float
    """Wall time of summing the gradients: the all-reduce, from the call to its result."""
    ended_s: float
    """When it ended, on the clock that all processes of the machine share (``time.monotonic``)."""


@dataclass(slots=True)
class Outcome:
    weights: model.Vector
    digest: str = ""
    """SHA-256 of the bytes of the final weights."""
    parameters: int = 0
    train_samples: int = 0
    test_samples: int = 0
    wall_s: float = 0.0
    accuracy: list[float] = field(default_factory=list)
    """On the test set, after each epoch."""
    digests: list[str] = field(default_factory=list)
    """Digests of the weights after each epoch."""
    steps: list[Step] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything but the weights."""
        return {name: value for name, value in asdict(self).items() if name != "weights"}


def train(
    plan: Plan, summer: GradientSum, on_step: Callable[[Step], None], *, told: Iterable[int] | None = None
) -> Outcome:
    """Run the plan; ``summer`` decides whether it is one rank or the whole job in one process.

    ``told``: the epochs, one by one, in place of the plan's.
    """
    digits = data.load(plan.seed)
    net = model.Mlp(plan.layers, data.stream(plan.seed, "initial weights"))
    outcome = Outcome(
        weights=net.parameters,
        parameters=len(net.parameters),
        train_samples=len(digits.train_labels),
        test_samples=len(digits.test_labels),
    )
    steps = None if told is not None else plan.epochs * (len(digits.train_labels) // plan.batch)
    start = time.perf_counter()
    for epoch in range(plan.epochs) if told is None else told:
        for indices in data.minibatches(plan.seed, epoch, len(digits.train_labels), plan.batch):
            gradients = []
            for rank in summer.ranks:
                mine = data.shard(indices, rank, plan.size)
                gradients.append(net.gradient(digits.train_images[mine], digits.train_labels[mine]))
            called = time.perf_counter()
            total = summer.sum(gradients)
            summed = time.perf_counter()
            mean = total / np.float32(plan.batch)
            net.apply(mean[: -model.EXTRA], rate=plan.rate, momentum=plan.momentum)
            step = Step(
                step=len(outcome.steps) + 1,
                steps=steps,
                epoch=epoch,
                loss=float(mean[-2]),
                train_accuracy=float(mean[-1]),
                sum_s=summed - called,
                ended_s=time.monotonic(),
            )
            outcome.steps.append(step)
            on_step(step)
        outcome.accuracy.append(net.accuracy(digits.test_images, digits.test_labels))
        outcome.digests.append(hashlib.sha256(net.parameters.tobytes()).hexdigest())
    outcome.wall_s = time.perf_counter() - start
    outcome.digest = outcome.digests[-1]
    return outcome


def with_one_blas_thread() -> None:
    """Start this script again with one BLAS thread, unless it has one already.

    More threads may cut a product into other blocks, and so round otherwise; numpy reads the
    variables when it is loaded, which is before this line.
    """
    if any(os.environ.get(variable) != "1" for variable in ONE_THREAD):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})


def told_epochs(lines: Iterable[str]) -> Iterator[int]:
    """One epoch for each line ``epoch``, until the line ``end``. Raises ``EOFError`` if none comes."""
    for epoch, line in enumerate(lines):
        match line.strip():
            case "epoch":
                yield epoch
            case "end":
                return
            case other:
                raise ValueError(f"stdin says {other!r}; known are 'epoch' and 'end'")
    raise EOFError("stdin was closed before it said 'end': whoever started this has ended")


def _print_step(step: Step) -> None:
    print(json.dumps(asdict(step)), flush=True)


DEFAULT = Plan()


@click.command()
@click.option("--one-process", is_flag=True, help="Train all shards here: the reference.")
@click.option("--rank", type=click.IntRange(min=0), help="The rank of this process.")
@click.option("--size", type=click.IntRange(min=2), default=DEFAULT.size, show_default=True, help="Ranks.")
@click.option("--job", default="digits", show_default=True, help="Name of the job on the switch.")
@click.option("--key", default="", help="Secret that every rank of the job must show.")
@click.option("--socket", type=click.Path(path_type=Path), help="UNIX socket of the local host daemon.")
@click.option(
    "--timeout", type=float, default=30.0, show_default=True, help="Seconds one all-reduce may take."
)
@click.option(
    "--seed", type=int, default=DEFAULT.seed, show_default=True, help="Split, order and first weights."
)
@click.option("--epochs", type=click.IntRange(min=1), default=DEFAULT.epochs, show_default=True)
@click.option("--told", is_flag=True, help="Epochs are told on stdin, one by one.")
@click.option("--nested", metavar="JSON", help="How one process adds, e.g. [[0,1],[2,3]]; default: in order.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=DEFAULT.batch,
    show_default=True,
    help="All ranks together.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="JSON file; the weights go beside it, as .weights.",
)
def main(
    *,
    one_process: bool,
    rank: int | None,
    size: int,
    job: str,
    key: str,
    socket: Path | None,
    timeout: float,
    seed: int,
    epochs: int,
    told: bool,
    nested: str | None,
    batch: int,
    out: Path,
) -> None:
    """Train a perceptron on handwritten digits as one rank of a data-parallel job."""
    if batch % size:
        raise click.UsageError(f"--batch {batch} must be a multiple of --size {size}")
    plan = Plan(seed=seed, size=size, epochs=epochs, batch=batch)
    if one_process:
        try:
            reference = OneProcess(size, None if nested is None else json.loads(nested))
        except ValueError as error:
            raise click.UsageError(f"--nested {nested}: {error}") from None
        outcome = train(plan, reference, lambda step: None)
    else:
        if rank is None or socket is None:
            raise click.UsageError("a rank needs --rank and --socket (or use --one-process)")
        try:
            switch = ThroughSwitch(job=job, rank=rank, size=size, key=key, socket=socket, timeout_s=timeout)
            outcome = train(plan, switch, _print_step, told=told_epochs(sys.stdin) if told else None)
            switch.close()
        except (InaprotoError, EOFError) as error:
            sys.exit(f"rank {rank}: {type(error).__name__}: {error}")
    out.with_suffix(".weights").write_bytes(outcome.weights.tobytes())
    out.write_text(json.dumps({"plan": asdict(plan), "rank": rank, **outcome.as_dict()}))


if __name__ == "__main__":
    with_one_blas_thread()
    main()
