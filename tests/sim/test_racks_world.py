"""Worlds of several switches: trees sum across racks, and every rule holds whatever befalls them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.sim.campaign.failure import say_failure
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.log import read_log
from inaproto.sim.campaign.marks import declared_of, meaning_of, seeds_min_of
from inaproto.sim.campaign.replay import replay
from inaproto.sim.campaign.sequence_diagram import draw
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, Swarm, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, SwitchConfig, Topology, fat_tree, leaf_spine
from inaproto.sim.frames.shrink import Candidate, fates_of, structural
from inaproto.sim.frames.world import World
from inaproto.units import MS
from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.bench.allreduce.link_traffic import Volume
from inaproto_hil.soak import soak
from tests.planted.shapes import damaged_addresses
from tests.seeds import seeds
from tests.sim.third_nak import PRODUCT, PROGRAM
from tests.sim.worlds import run

SMALL = Swarm(ranks_max=6, jobs_max=2, packets_max=200)


def racks(**changes: object) -> WorldConfig:
    """Two racks of two hosts, one job across them, clear weather."""
    job = JobConfig("job0", (0, 2, 1, 3), (400, 3, 700), think_ns=MS)
    config = WorldConfig("racks", (job,), (LinkConfig(),) * 4, topology=leaf_spine(2, 4))
    return replace(config, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", seeds(25))
def test_every_rule_holds(seed: int) -> None:
    result = run(draw_racks(seed, SMALL))
    assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
    assert result.operations_done


ONCE_BROKEN = {
    92: "an address was learnt from a late result",
    278: "timers in lock step overran one queue, again and again",
    257: "two damaged addresses on first packets shut their rank out",
    300: "a first packet with a damaged address counts",
    420: "its next packet was taken for a stranger's",
    459: "a first packet that came again does not void what came behind it",
    519: "an address was learnt from a damaged frame of another host",
    609: "an address was learnt from a damaged frame, and no other came to correct it",
    841: "a message of one packet does not void the next one",
    892: "timers in lock step overran one queue",
    1134: "of two NAKs that came at once the second one had what the first one lacked",
    1862: "what came from an address of a damaged first packet was taken, and what did not was a hole",
}


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_worlds_that_broke_a_rule_once(seed: int) -> None:
    assert run(draw_racks(seed)).violation is None


@pytest.mark.parametrize("seed", [2, 172, 231, 560])
def test_damage_where_no_icrc_looks_stops_nobody(seed: int) -> None:
    """Seed 2: what was damaged twice passed raw. Others: a misled bridge sent a chain's packets elsewhere."""
    result = run(damaged_addresses(draw_racks(seed)))
    assert result.violation is None


def test_one_copy_goes_up_and_one_comes_down_each_trunk() -> None:
    world = World(racks())
    assert world.run().violation is None
    operations = [Volume.of(4 * count, mtu=256, message_packets=4) for count in (400, 3, 700)]
    packets = sum(volume.packets for volume in operations)
    counters = {switch.name: switch.accelerator.counters for switch in world.switches}
    for leaf in (counters["leaf0"], counters["leaf1"]):
        assert (leaf.sums_up, leaf.sums_up_again, leaf.results_in) == (packets, 0, packets)
    spine = counters["spine"]
    assert (spine.aggregated_in, spine.results_down, spine.results_down_again) == (
        2 * packets,
        2 * packets,
        0,
    )


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16, Dtype.F32])
@pytest.mark.parametrize("op", [Op.SUM, Op.MIN])
def test_results_are_rounded_at_each_switch(dtype: Dtype, op: Op) -> None:
    """Three levels; the flat sum differs, so the oracle's plan matters."""
    job = JobConfig("job0", tuple(range(8)), (900,), dtype=dtype, op=op)
    config = WorldConfig("deep", (job,), (LinkConfig(),) * 8, topology=fat_tree(4, 8))
    assert run(config).violation is None
    if op is Op.SUM:
        flat = replace(config, topology=None)
        one, other = (World(each).oracle(job).result(5, 0, 900) for each in (config, flat))
        assert one != other


def test_a_switch_without_memory_steers() -> None:
    tree = leaf_spine(2, 4)
    steering = replace(tree.switches[1], aggregates=False)
    tree = replace(tree, switches=(tree.switches[0], steering, tree.switches[2]))
    result = run(racks(topology=tree))
    assert result.violation is None
    assert result.marks["switch: steered"]


def test_jobs_within_a_rack_do_not_use_the_spine() -> None:
    job = JobConfig("job0", (1, 0), (400,))
    world = World(racks(jobs=(job,)))
    assert world.run().violation is None
    assert not world.switch.accelerator.counters.aggregated_in


@pytest.mark.parametrize("target", [0, 1, 2])
def test_any_switch_may_reboot_while_a_ring_runs(target: int) -> None:
    fault = Fault(MS, FaultKind.SWITCH_REBOOT, target, 3 * MS, job=0, operation=1)
    result = run(racks(faults=(fault,)))
    assert result.violation is None
    assert result.marks["fault during an all-reduce: switch reboot"] == 1
    assert result.marks["a job finished after it had started anew"] == 1
    assert result.marks.get("a ring was stopped: switch lost", 0) == (target > 0)


@pytest.mark.parametrize("kind", [FaultKind.PARTITION, FaultKind.ONE_WAY_PARTITION, FaultKind.BURST])
@pytest.mark.parametrize("is_downward", [False, True])
def test_a_cut_trunk_costs_time_only(kind: FaultKind, is_downward: bool) -> None:
    weather = Weather(drop=0.5) if kind is FaultKind.BURST else Weather()
    cut = Fault(1, kind, 0, 20 * MS, weather, job=0, operation=1, trunk=1, is_downward=is_downward)
    result = run(racks(faults=(cut,)))
    assert result.violation is None
    assert result.marks[f"fault: trunk {kind}"] == 1
    assert result.operations_done == 4 * 3
    assert "a job finished after it had started anew" not in result.marks


def test_a_refusing_switch_makes_the_job_wait_its_turn() -> None:
    jobs = tuple(JobConfig(f"job{n}", (n, 2 + n), (900,) * 4) for n in range(2))
    result = run(racks(jobs=jobs, tight_switch=True))
    assert result.violation is None
    assert result.marks["a ring was refused for want of memory"]
    assert result.operations_done == 2 * 2 * 4


def test_a_run_repeats() -> None:
    first, second = run(draw_racks(7, SMALL)), run(draw_racks(7, SMALL))
    assert (first.digest, first.events, first.marks) == (second.digest, second.events, second.marks)
    assert run(draw_racks(6, SMALL)).digest != first.digest


def test_drawn_worlds_survive_their_record_and_are_varied() -> None:
    kinds: set[tuple[object, bool]] = set()
    for seed in range(150):
        config = draw_racks(seed)
        assert WorldConfig.from_record(json.loads(json.dumps(config.as_record()))) == config
        topology = config.topology
        assert topology is not None
        kinds.add((len(topology.switches), any(not switch.aggregates for switch in topology.switches)))
        kinds.update((fault.kind, fault.trunk >= 0) for fault in config.faults)
    assert {
        (FaultKind.PARTITION, True),
        (FaultKind.ONE_WAY_PARTITION, True),
        (FaultKind.BURST, True),
    } <= kinds
    assert {(3, True), (3, False), (7, True)} <= kinds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topology": leaf_spine(2, 3)}, "4 hosts, 3 are attached"),
        ({"faults": (Fault(1, FaultKind.PARTITION, 0, 5, trunk=3),)}, "no such trunk"),
        ({"faults": (Fault(1, FaultKind.PAUSE, 0, 5, trunk=1),)}, "none of its faults"),
        ({"topology": None, "faults": (Fault(1, FaultKind.BURST, 0, 5, trunk=1),)}, "no such trunk"),
    ],
)
def test_worlds_that_cannot_be(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        racks(**change)


# --- logs, drawings, smaller worlds


def test_a_log_replays_and_its_drawing_has_every_switch(tmp_path: Path) -> None:
    config = draw_racks(4, SMALL)
    log = PRODUCT.record(config, PROGRAM)
    log.write(tmp_path / "log")
    again = replay(read_log(tmp_path / "log"), PRODUCT, PROGRAM)
    assert again.same
    drawing = draw(log, last=30)
    assert config.topology is not None
    for switch in config.topology.switches:
        assert f">{switch.name}<" in drawing


def test_words_name_the_switches() -> None:
    cut = Fault(1, FaultKind.PARTITION, 0, MS, job=0, operation=0, trunk=2)
    reboot = Fault(2 * MS, FaultKind.SWITCH_REBOOT, 1, MS, job=0, operation=1)
    log = PRODUCT.record(racks(faults=(cut, reboot)), PROGRAM)
    texts = [said["text"] for record in log.records for said in record.get("said", [])]
    assert any(text.startswith("fault: partition of leaf1>spine") for text in texts)
    assert any(text.startswith("fault: switch reboot of leaf0") for text in texts)
    notes = {send["what"]["what"] for record in log.records for send in record.get("sends", [])}
    assert "note OPENS" in notes
    assert {"leaf0", "leaf1", "spine"} <= {record.get("name") for record in log.records}
    assert say_failure(log).startswith("seed racks: no rule was broken")


def test_smaller_worlds_are_worlds() -> None:
    for seed in (2, 9, 11):
        config = draw_racks(seed, SMALL)
        result = run(config)
        for fates in (None, fates_of(result)):
            smaller = [found.config for found in structural(Candidate(config, fates))]
            assert len({repr(one) for one in smaller}) > 20
            assert all(len(one.links) <= len(config.links) for one in smaller)


def test_an_unused_switch_goes_and_faults_move_with_the_others() -> None:
    switches = (
        SwitchConfig("spine"),
        SwitchConfig("leaf0", 0),
        SwitchConfig("leaf1", 0),
        SwitchConfig("leaf2", 0),
    )
    cut = Fault(1, FaultKind.PARTITION, 0, 5, trunk=3)
    reboot = Fault(2, FaultKind.SWITCH_REBOOT, 3, 5)
    config = racks(topology=Topology(switches, (1, 1, 3, 3)), faults=(cut, reboot))
    found = [one.config for one in structural(Candidate(config, None)) if one.config.topology is not None]
    fewer = next(one for one in found if one.topology is not None and len(one.topology.switches) == 3)
    assert fewer.topology is not None
    assert [switch.name for switch in fewer.topology.switches] == ["spine", "leaf0", "leaf2"]
    assert fewer.topology.attached == (1, 1, 2, 2)
    assert fewer.faults == (replace(cut, trunk=2), replace(reboot, target=2))


# --- campaigns


def test_a_campaign_of_racks_runs_and_reruns(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        soak, ["--world", "racks", "--seeds", "4:5", "--jobs", "1", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["plan"]["world"] == "racks"
    assert "a note was lost" in {mark["name"] for mark in report["marks"] if mark["declared"]}
    other = CliRunner().invoke(
        soak, ["--world", "single", "--resume", "--seeds", "4:6", "--out", str(tmp_path)]
    )
    assert other.exit_code == 2
    assert "--world is single, was racks" in other.output
    digest = CliRunner().invoke(soak, ["--world", "racks", "--seed", "4", "--digest"])
    assert digest.output == PRODUCT.run(draw_racks(4)).digest + "\n"


def test_marks_of_racks_have_meanings() -> None:
    declared = declared_of(WorldKind.RACKS)
    assert all(meaning_of(name) == words for name, words in declared.items())
    assert (seeds_min_of(WorldKind.SINGLE), seeds_min_of(WorldKind.RACKS)) == (2000, 1000)
    for needed in (
        "switch: results_down_again",
        "a note was lost",
        "a note told of a gap",
        "switch: steered",
        "a trunk was cut under a ring",
    ):
        assert needed in declared
        assert needed not in declared_of(WorldKind.SINGLE)


def passing(config: WorldConfig) -> WorldConfig:
    """Switches that steer pass sums on."""
    topology = config.topology
    assert topology is not None
    switches = tuple(replace(one, passes_sums=not one.aggregates) for one in topology.switches)
    return replace(config, topology=replace(topology, switches=switches))


@pytest.mark.parametrize("seed", [67, 73, 86, 87, 91, 92, 141, 143])
def test_every_rule_holds_where_sums_pass_switches_that_steer(seed: int) -> None:
    result = run(passing(draw_racks(seed)))
    assert result.violation is None, result.violation
    assert result.operations_done


def test_a_ring_goes_to_the_root_of_the_own_tree_if_it_is_to() -> None:
    job = JobConfig("job0", (0, 1), (400,), think_ns=MS)
    config = racks(jobs=(job,))
    for to_root in (False, True):
        world = World(replace(config, to_root=to_root))
        assert world.run().violation is None
        assert (world.switches[0].accelerator.counters.aggregated_in > 0) == to_root
    with pytest.raises(ConfigError, match="rings to the root of the own tree"):
        racks(topology=None, to_root=True)
