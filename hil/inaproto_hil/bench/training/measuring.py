"""Rounds of ``inaproto bench training``: in each, every run has one turn; who begins changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from inaproto_hil.bench.comparison import turns
from inaproto_hil.bench.peers.tools import Tools
from inaproto_hil.bench.training.config import Config
from inaproto_hil.bench.training.figures import Measured
from inaproto_hil.bench.training.runs import Run, TurnResult, open_machines, open_runs


def measure(
    config: Config,
    tools: Tools,
    paths: Mapping[str, str],
    place: tuple[int, int],
    versions: dict[str, str],
    on_turn: Callable[[str], None],
    on_measured: Callable[[Measured], None],
) -> None:
    """All models, at one number of ranks and one rate of links (``place``).

    ``paths``: of each contender that takes part, its ``PYTHONPATH``. Raises ``ClusterError`` if a process
    fails; what was measured before has been given to ``on_measured``.
    """
    ranks, rate_bps = place
    where = f"{ranks} ranks, {rate_bps / 1e6:g} Mbit/s"
    with ExitStack() as stack:
        on_turn(f"{where}: links and daemons")
        machines = open_machines(config, ranks, rate_bps, paths, tools, stack)
        versions |= {name: one.version for name, one in machines.items()}
        for model in config.models:
            with ExitStack() as of_model:
                on_turn(f"{where}, {model}: starting")
                runs = {run.name: run for run in open_runs(config, tools, model, machines, of_model)}
                found: dict[str, list[TurnResult]] = {name: [] for name in runs}
                for round_ in range(config.rounds):
                    for name in turns(list(runs), round_):
                        on_turn(f"{where}, {model}: round {round_ + 1}, {name}")
                        found[name].append(runs[name].turn())
                on_measured(_measured(model, place, runs, found))


def _measured(
    model: str, place: tuple[int, int], runs: Mapping[str, Run], found: Mapping[str, list[TurnResult]]
) -> Measured:
    return Measured(
        model=model,
        ranks=place[0],
        rate_bps=place[1],
        parameters=next(iter(runs.values())).log.hellos[0].get("parameters", 0),
        turns={(run.contender, run.kind): tuple(found[name]) for name, run in runs.items()},
        steps={(run.contender, run.kind): run.log.ranks for run in runs.values()},
        paths={run.contender: run.path() for run in runs.values()},
        bucket_mib={run.contender: run.log.hellos[0].get("bucket_mib") for run in runs.values()},
    )
