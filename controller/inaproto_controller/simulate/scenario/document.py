"""The report as one JSON document; table and page are rendered from it.

It depends on the scenario and the seeds alone: not on the machine, nor on how long it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.placement.occupancy import Cluster
from inaproto_controller.simulate.scenario.file import VariantTable
from inaproto_controller.simulate.scenario.measures import BY_KEY, MEASURES
from inaproto_controller.simulate.scenario.runs import Run
from inaproto_controller.simulate.scenario.scenario import Scenario
from inaproto_controller.simulate.scenario.statistics import Mean, mean_of

VERSION: Final = 1
_SAME: Final = 1e-9
"""Seconds, or shares, that are no more than rounding."""


def document(scenario: Scenario, seeds: Sequence[int], runs: Sequence[Run]) -> dict[str, Any]:
    """For ``json.dump``; a value that is undefined is null."""
    variants = [
        _variant(variant, [run for run in runs if run.variant == number])
        for number, variant in enumerate(scenario.variants)
    ]
    for variant in variants:
        variant["against_first"] = _against(variant, variants[0])
    found = {
        "version": VERSION,
        "report": "simulate",
        "inaproto": version("inaproto"),
        "title": scenario.file.title or scenario.path.stem,
        "scenario": scenario.path.name,
        "seeds": list(seeds),
        "cluster": _cluster(scenario),
        "speeds": _speeds(scenario),
        "models": [_model(scenario, name) for name in scenario.model_names],
        "variants": variants,
    }
    found["verdict"] = verdict(found)
    found["notes"] = _notes(scenario, found)
    return found


def _variant(variant: VariantTable, runs: Sequence[Run]) -> dict[str, Any]:
    keys = runs[0].measures
    models = list(dict.fromkeys(model for run in runs for model in run.by_model))
    return {
        "name": variant.label,
        "placement": variant.placement,
        "trees": variant.trees,
        "tree_options": variant.tree_options,
        "policy": variant.policy.value,
        "order": variant.order.value,
        "weighted": variant.weighted,
        "pairwise": variant.pairwise,
        "suffix": variant.suffix,
        "jitter": variant.jitter,
        "measures": {key: mean_of([run.measures[key] for run in runs]).as_dict() for key in keys},
        "by_model": {model: _of_model(model, runs) for model in sorted(models)},
        "runs": [{"seed": run.seed, **run.measures} for run in runs],
        "jobs": runs[0].jobs,
        "moments": runs[0].moments,
    }


def _of_model(model: str, runs: Sequence[Run]) -> dict[str, Any]:
    with_it = [run.by_model[model] for run in runs if model in run.by_model]
    return {key: mean_of([one[key] for one in with_it]).as_dict() for key in with_it[0]}


def _against(variant: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    return {measure.key: _difference(variant, first, measure.key).as_dict() for measure in MEASURES}


def _difference(one: dict[str, Any], other: dict[str, Any], key: str) -> Mean:
    """Seed by seed: all variants of a seed have the same jobs, so most of the spread cancels."""
    pairs = [(ours[key], theirs[key]) for ours, theirs in zip(one["runs"], other["runs"], strict=True)]
    return mean_of([None if None in pair else pair[0] - pair[1] for pair in pairs])


def _cluster(scenario: Scenario) -> dict[str, Any]:
    migration = scenario.file.migration.migration()
    return {
        "hosts": scenario.cluster.hosts,
        **_shape(scenario.cluster),
        "graph": scenario.file.cluster.graph,
        "quota": None if scenario.file.cluster.graph else scenario.file.cluster.quota_or_default.value,
        "capacity_model": scenario.file.cluster.capacity_model,
        "migration_release_s": migration.release,
        "migration_total_s": migration.total,
        "until_s": scenario.file.until,
    }


def _shape(cluster: Cluster) -> dict[str, Any]:
    """``switches``: layer by layer, if there are layers."""
    if isinstance(cluster, GraphTopology):
        return {
            "switches": [len(cluster.switches)],
            "summing": sum(switch.aggregates for switch in cluster.switches),
            "links": len(cluster.links),
            "down": None,
            "up": None,
        }
    switches = [cluster.nodes(layer) for layer in range(1, cluster.layers + 1)]
    return {
        "switches": switches,
        "summing": sum(switches),
        "links": sum(cluster.links(layer) for layer in range(cluster.layers)),
        "down": list(cluster.down),
        "up": list(cluster.up),
    }


def _speeds(scenario: Scenario) -> dict[str, Any]:
    speeds = scenario.file.speeds.speeds()
    return {
        "bandwidth_bytes_s": speeds.bandwidth,
        "ina_ratio": speeds.ina_ratio,
        "latency_s": speeds.latency,
        "gpu_speedup": speeds.gpu_speedup,
    }


def _model(scenario: Scenario, name: str) -> dict[str, Any]:
    trace, times = scenario.trace(name), scenario.times(name)
    return {
        "name": name,
        "own": name in scenario.own_models,
        "all_reduces": times.count,
        "bytes": sum(trace.nbytes),
        "step_plain_s": times.step_plain,
        "step_ina_s": times.step_ina,
        "possible_share": times.gain,
    }


# -- in words


def verdict(found: dict[str, Any]) -> list[str]:
    """Plain sentences: what INA is worth here, variant by variant, best first."""
    lines = [_worth(variant) for variant in found["variants"]]
    scored = [
        variant for variant in found["variants"] if variant["measures"]["jct_with_queue_s_mean"]["mean"]
    ]
    if len(scored) > 1:
        lines.append(_best(scored))
    return lines


def _worth(variant: dict[str, Any]) -> str:
    measures, name = variant["measures"], variant["name"]
    if not measures["jobs"]["mean"]:
        return f"{name}: no job was placed."
    if measures["score"]["mean"] is None and measures["restarts"]["mean"]:
        return f"{name}: the score is undefined: no job that lost no host would be any faster with INA."
    if measures["score"]["mean"] is None:
        return (
            f"{name}: the score is undefined: at these speeds no job would be any faster with INA. Its "
            "operations are hidden behind computing, or its jobs have one host."
        )
    saved, share = measures["saved_s_mean"]["mean"], measures["saved_share"]["mean"]
    plain, score = measures["plain_s_mean"]["mean"], measures["score"]["mean"]
    waits = f"A job waits {measures['queued_s_mean']['mean']:.4g} s for hosts."
    if abs(share) < _SAME:
        return f"{name}: INA saves nothing of the mean job, which takes {plain:.4g} s. {waits}"
    migrations, downtime = (measures[key]["mean"] for key in ("migrations_per_job", "downtime_s_per_job"))
    if migrations:
        waits += f" Its tree is changed {migrations:.3g} times, which costs it {downtime:.3g} s without INA."
    if measures["restarts"]["mean"]:
        waits += " Jobs that lost a host are left out of the score and of what is saved."
    did = "saves" if saved > 0 else "costs"
    return (
        f"{name}: INA {did} {abs(saved):.3g} s ({100 * abs(share):.2f} %) of the mean job, which takes "
        f"{plain:.4g} s without it; of what it could save it gets {100 * score:z.1f} %. {waits}"
    )


def _best(variants: Sequence[dict[str, Any]]) -> str:
    key = "jct_with_queue_s_mean"
    best, second = sorted(variants, key=lambda variant: float(variant["measures"][key]["mean"]))[:2]
    difference = _difference(second, best, key)
    assert difference.mean is not None
    said = BY_KEY[key].show(difference.mean)
    if abs(difference.mean) < _SAME:
        return f"A user waits least, and the same, with {best['name']} and with {second['name']}."
    line = f"A user waits least with {best['name']}: {said} less per job than with {second['name']}"
    if difference.half_width is None:
        return f"{line}; how far to trust that, more seeds would say."
    by_chance = difference.half_width >= difference.mean
    trust = "which may be chance" if by_chance else "beyond chance"
    return f"{line} (95 % confidence: ± {difference.half_width:.3f} s), {trust}."


def _notes(scenario: Scenario, found: dict[str, Any]) -> list[str]:
    notes = []
    seeds = found["seeds"]
    if len(seeds) == 1:
        notes.append("One seed: no confidence intervals. seeds = 10 gives them.")
    elif all(_is_same(variant) for variant in found["variants"]):
        notes.append("Nothing in this scenario is drawn that matters: all seeds gave the same.")
    for variant in found["variants"]:
        measures = variant["measures"]
        for measure in MEASURES:
            undefined = measures[measure.key]["undefined_runs"]
            if undefined:
                notes.append(
                    f"{variant['name']}: {measure.label} is undefined in {undefined} of {len(seeds)} runs: "
                    f"{measure.why_undefined}."
                )
        for key, said in (
            ("unfinished", "jobs had not ended at the limit; whole steps count"),
            ("unplaced", "requests got no hosts and are in no mean"),
            ("restarts", "restarts of jobs that lost a host: left out of score and saved"),
        ):
            if measures[key]["mean"]:
                notes.append(f"{variant['name']}: {measures[key]['mean']:g} {said}.")
    if scenario.file.migration.migration().total == 0:
        notes.append("Changes of trees cost nothing here ([migration] total = 0).")
    return notes


def _is_same(variant: dict[str, Any]) -> bool:
    runs = [{key: value for key, value in run.items() if key != "seed"} for run in variant["runs"]]
    return all(run == runs[0] for run in runs)
