"""Figures of ``inaproto bench training``: from turns to rows, reasons and the JSON document.

A sample is the time of a step in one turn; a figure is the median of its samples, one for each round, and a
ratio the median of the rounds' ratios: what disturbs one contender disturbs the other.

- *exposed*: what of a step is not computation: (step - computation alone) / step;
- *overlap*: (computation + communication - step) / the shorter of both: 1 if the shorter one hides entirely
  behind the longer one, 0 if they follow each other. Both are measured alone, with as many processes on the
  same processors, so it is below 0 where computation and communication take the processor from each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from inaproto_hil.bench.peers.config import FLOAT_BYTES, GLOO, INAPROTO
from inaproto_hil.bench.peers.figures import others_share
from inaproto_hil.bench.report import bounds
from inaproto_hil.bench.training.config import ALONE, COMMUNICATION, OURS, TRAINING, Config
from inaproto_hil.bench.training.runs import TurnResult
from inaproto_hil.bench.training.steps import Step, agreement, loss_difference

VERSION: Final = 1
HELPS: Final = 1.05
"""Times as many steps as gloo from which on nothing needs to be said."""
COMPUTE_BOUND: Final = 0.15
"""What of gloo's step is not computation, below which there is little to gain."""
CPU_BOUND: Final = 0.85
"""Share of the machine's processors that is in use, from which on they are what limits."""
QUIET: Final = 0.1
"""Share of them that others may use: programs beside, and the kernel for itself."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A model at one number of ranks on one kind of link: all runs, by contender and kind."""

    model: str
    ranks: int
    rate_bps: int
    parameters: int
    turns: Mapping[tuple[str, str], tuple[TurnResult, ...]]
    steps: Mapping[tuple[str, str], Sequence[Sequence[Step]]]
    """Every one of each rank, whether it counts or not."""
    paths: Mapping[str, str]
    """By which way each contender's daemons added up; empty where there are none."""
    bucket_mib: Mapping[str, float | None]
    """Of DDP's buckets; None: the script does not tell."""

    @property
    def contenders(self) -> list[str]:
        return [name for name, kind in self.turns if kind == TRAINING]

    def samples(self, contender: str, kind: str) -> list[float]:
        """Seconds of a step, one for each round; empty where it was not measured."""
        return [turn.sample_s for turn in self.turns.get((contender, kind), ())]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step is made of: seconds, medians."""

    step: float
    compute: float | None
    communication: float | None

    @property
    def exposed(self) -> float | None:
        """Share of the step that is not computation."""
        return None if self.compute is None else max(0.0, (self.step - self.compute) / self.step)

    @property
    def overlap(self) -> float | None:
        if self.compute is None or self.communication is None:
            return None
        shorter = min(self.compute, self.communication)
        return (self.compute + self.communication - self.step) / shorter

    @property
    def to_longer(self) -> float | None:
        """Of the step to the longer of both: 1 if nothing but that one is seen of it."""
        if self.compute is None or self.communication is None:
            return None
        return self.step / max(self.compute, self.communication)


def parts_of(measured: Measured, contender: str) -> Parts:
    def median(samples: Sequence[float]) -> float | None:
        return statistics.median(samples) if samples else None

    return Parts(
        statistics.median(measured.samples(contender, TRAINING)),
        median(measured.samples(ALONE, ALONE)),
        median(measured.samples(contender, COMMUNICATION)),
    )


def busy(turns: Sequence[TurnResult], cores: int) -> float:
    """Share of the machine's processors that was in use in these turns, by whomever."""
    return sum(turn.machine_cpu_s for turn in turns) / (cores * sum(turn.whole_s for turn in turns))


def link_s(config: Config, contender: str, ranks: int, gradient_bytes: int, rate_bps: int) -> float:
    """Seconds for which a link is needed for one sum of all gradients, at least."""
    share = bounds(mtu=config.mtu, ranks=ranks)["ina" if contender in OURS else "ring"]
    return 8 * gradient_bytes / rate_bps / share


def ratio(measured: Measured, contender: str, peer: str) -> dict[str, Any] | None:
    """How many times as many steps as the peer: its time by the contender's, round by round."""
    mine, theirs = measured.samples(contender, TRAINING), measured.samples(peer, TRAINING)
    if not mine or not theirs:
        return None
    rounds = [other / own for own, other in zip(mine, theirs, strict=True)]
    return {
        "model": measured.model,
        "ranks": measured.ranks,
        "rate_bps": measured.rate_bps,
        "contender": contender,
        "peer": peer,
        "median": statistics.median(rounds),
        "min": min(rounds),
        "max": max(rounds),
        "rounds": len(rounds),
    }


def reasons(
    *, gain: float, ranks: int, gloo_exposed: float | None, busy_share: float, others: float, cores: int
) -> list[str]:
    """Why inaproto does not help, by the figures; nothing where it does.

    ``gain``: times as many steps as gloo; ``gloo_exposed``: what of gloo's step is not computation, None if
    not measured; ``busy_share``: of the machine's processors, in inaproto's turns, ``others`` of them by
    processes that are not inaproto's.
    """
    if gain >= HELPS:
        return []
    found = []
    if gloo_exposed is not None and gloo_exposed < COMPUTE_BOUND:
        found.append(
            f"compute-bound: communication adds {gloo_exposed:.0%} to gloo's step, so there is no more than "
            f"x {1 / (1 - gloo_exposed):.2f} to gain"
        )
    if ranks == 2:
        found.append("W = 2: a ring of two sends each byte once, as a sum in the network does")
    if busy_share >= CPU_BOUND:
        found.append(f"CPU-bound: {busy_share:.0%} of the machine's {cores} cores are in use")
    if others >= QUIET:
        found.append(
            f"not quiet: others use {others:.0%} of the cores, which the daemons need more than gloo does"
        )
    return found or ["no rule explains it: look at the spread, and at the daemons' CPU"]


def rows_of(config: Config, measured: Measured, cores: int) -> list[dict[str, Any]]:
    return [_row(config, measured, name, cores) for name in measured.contenders]


def _row(config: Config, measured: Measured, contender: str, cores: int) -> dict[str, Any]:
    turns = measured.turns[contender, TRAINING]
    samples = measured.samples(contender, TRAINING)
    parts = parts_of(measured, contender)
    agreed = agreement(measured.steps[contender, TRAINING])
    gloo_steps = measured.steps.get((GLOO, TRAINING))
    of_gloo = None
    if contender != GLOO and gloo_steps is not None:
        of_gloo = loss_difference(measured.steps[contender, TRAINING], gloo_steps)
    gain = ratio(measured, contender, GLOO) if contender != GLOO else None
    share, others = busy(turns, cores), others_share(turns, cores)
    why = []
    if contender == INAPROTO and gain is not None:
        exposed = parts_of(measured, GLOO).exposed
        why = reasons(
            gain=gain["median"],
            ranks=measured.ranks,
            gloo_exposed=exposed,
            busy_share=share,
            others=others,
            cores=cores,
        )
    ended = sum(turn.steps for turn in turns)
    gradient_bytes = measured.parameters * FLOAT_BYTES
    cpu_s = {kind: sum(turn.cpu_s[kind] for turn in turns) / ended for kind in turns[0].cpu_s}
    least_s = link_s(config, contender, measured.ranks, gradient_bytes, measured.rate_bps)
    return {
        "model": measured.model,
        "ranks": measured.ranks,
        "rate_bps": measured.rate_bps,
        "contender": contender,
        "path": measured.paths.get(contender, ""),
        "parameters": measured.parameters,
        "gradient_bytes": gradient_bytes,
        "bucket_mib": measured.bucket_mib.get(contender),
        "step_ms": 1e3 * parts.step,
        "step_ms_min": 1e3 * min(samples),
        "step_ms_max": 1e3 * max(samples),
        "samples_ms": [1e3 * one for one in samples],
        "steps_counted": sum(len(seconds) for turn in turns for seconds in turn.seconds) // measured.ranks,
        "compute_ms": _times(parts.compute, 1e3),
        "communication_ms": _times(parts.communication, 1e3),
        "link_ms": 1e3 * least_s,
        "exposed": parts.exposed,
        "overlap": parts.overlap,
        "step_to_longer": parts.to_longer,
        "samples_per_s": measured.ranks * config.batch / parts.step,
        "cpu_s_per_step": sum(cpu_s.values()),
        "cpu_s_per_step_parts": cpu_s,
        "busy": share,
        "others_share": others,
        "x_gloo": gain["median"] if gain else None,
        "agreement": asdict(agreed),
        "losses": [[step.loss for step in steps] for steps in measured.steps[contender, TRAINING]],
        "loss_difference": None if of_gloo is None else asdict(of_gloo),
        "why_not_faster": why,
        "turns": [asdict(turn) for turn in turns],
    }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def document(
    *,
    config: Config,
    env: Mapping[str, Any],
    peers: Mapping[str, Any],
    measured: Sequence[Measured],
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole report for ``json.dump``. ``failures``: why other rows are missing."""
    rows = [row for one in measured for row in rows_of(config, one, env["cores"])]
    found = (
        ratio(one, mine, peer)
        for one in measured
        for mine in one.contenders
        for peer in one.contenders
        if mine == INAPROTO and peer != mine
    )
    return {
        "version": VERSION,
        "benchmark": "training",
        "config": asdict(config),
        "env": dict(env),
        "peers": dict(peers),
        "failures": list(failures),
        "differing": sum(row["agreement"]["differing"] for row in rows),
        "ratios": [one for one in found if one is not None],
        "rows": rows,
    }
