"""The act ``racks`` without its processes: the script, the nested reference, what the summary says."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from examples.digits import racks, racks_plot, train
from examples.digits.racks_watch import FALLBACK, REBOOT, RETURNED, Event, PathSample, Tally
from examples.digits.scenario import (
    CutLink,
    End,
    GiveUp,
    Job,
    MendLink,
    Order,
    Reboot,
    Scenario,
    Seen,
    Timing,
)
from examples.digits.watch import WireSample
from inaproto.daemon.settings.config import load_switch_settings
from inaproto.daemon.settings.fabric_file import load_fabric
from inaproto_hil.demo.acts import demo
from inaproto_hil.rigs.fabric_cluster import FabricConfig, fabric_toml

SWITCHES = Job("digits", "running", "switch", "", 0, "")
HOSTS = Job("digits", "running", "chain", "leaf0: no room", 1, "leaf0 is gone")
HALTED = replace(HOSTS, phase="halted")
CONFIG = racks.Config(seed=1, weather="", epochs=1, batch=64, flaps=1, steps=2, timeout_s=30.0)


class Stage:
    """Plays a scenario: a step of training with each look, a tenth of a second apart."""

    def __init__(self, timing: Timing) -> None:
        self.scenario = Scenario(timing)
        self.step = 0
        self.at_s = self.stepped_s = 0.0

    def look(self, job: Job | None, steps: int = 1, *, late_s: float = 0.0) -> list[Order]:
        """``late_s``: how long ago these steps had ended."""
        self.step += steps
        self.at_s += 0.1
        if steps:
            self.stepped_s = self.at_s - late_s
        return self.scenario.look(Seen(self.at_s, self.step, self.stepped_s, job))

    def until_ordered(self, job: Job | None) -> list[Order]:
        for _ in range(1000):
            if orders := self.look(job):
                return orders
        raise AssertionError("no orders")


def test_the_script_flaps_the_link_then_reboots_without_memory_then_with_it() -> None:
    stage = Stage(Timing(steps=5, flaps=2, flap_s=0.3))
    assert stage.until_ordered(SWITCHES) == [CutLink()]
    assert stage.step == 1 + 5
    for more in ([CutLink()], [Reboot(with_memory=False)]):
        cut_s = stage.at_s
        assert stage.until_ordered(SWITCHES) == [MendLink()]
        assert stage.at_s == pytest.approx(cut_s + 0.3, abs=0.11)
        mended = stage.step
        assert stage.until_ordered(SWITCHES) == more
        assert stage.step == mended + 5
    for job in (SWITCHES, HALTED, None, replace(HALTED, path="switch")):
        assert stage.look(job) == []  # not by the hosts yet
    assert stage.until_ordered(HOSTS) == [Reboot(with_memory=True)]
    for job in (HOSTS, HALTED, None, replace(HALTED, path="switch"), replace(SWITCHES, fallback="why")):
        assert stage.look(job) == []  # not back yet
    assert stage.until_ordered(SWITCHES) == [End()]
    assert stage.look(SWITCHES) == []


def test_training_that_stands_still_is_given_up_and_says_what_did_not_come() -> None:
    stage = Stage(Timing(steps=5, within_s=2.0))
    assert stage.look(SWITCHES) == []
    orders = [order for _ in range(40) for order in stage.look(SWITCHES, steps=0)]
    assert [type(order) for order in orders] == [GiveUp]
    assert isinstance(orders[0], GiveUp)
    assert orders[0].reason.startswith("no step after 1 within 2 s, at step 1")


def test_steps_that_are_heard_of_late_are_not_taken_for_later_ones() -> None:
    stage = Stage(Timing(steps=5))
    assert stage.look(SWITCHES) == []
    assert stage.look(SWITCHES, 40, late_s=0.2) == []
    assert stage.until_ordered(SWITCHES) == [CutLink()]
    assert stage.step == 1 + 40 + 5


def test_a_job_that_never_comes_is_given_up() -> None:
    stage = Stage(Timing(within_s=1.0))
    orders = [order for _ in range(40) for order in stage.look(None, steps=0)]
    assert isinstance(orders[0], GiveUp)
    assert "a sum in the switches" in orders[0].reason


def test_one_process_adds_as_the_lists_are_nested() -> None:
    values = np.random.default_rng(3).standard_normal((8, 64), dtype=np.float32) * np.float32(1e4)
    shards = list(values)
    assert CONFIG.nested == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    by_hand = ((values[0] + values[1]) + (values[2] + values[3])) + (
        (values[4] + values[5]) + (values[6] + values[7])
    )
    nested = train.OneProcess(8, CONFIG.nested).sum(shards)
    assert nested.tobytes() == by_hand.tobytes()
    assert nested.tobytes() != train.OneProcess(8).sum(shards).tobytes()
    assert (np.stack(shards) == values).all()  # its inputs are as they were


@pytest.mark.parametrize(
    "nested", [[0, 1, 2], [0, [1, 1], 3], [[0, 1], [2, 4]], [0, 1, [2, 3], []], [], [0, "1"]]
)
def test_lists_that_do_not_name_each_rank_once_are_refused(nested: train.Nested) -> None:
    with pytest.raises(ValueError, match=r"must name each of the ranks 0\.\.3 once|is no list of ranks"):
        train.OneProcess(4, nested)


def test_epochs_are_told_until_the_end_is() -> None:
    assert list(train.told_epochs(["epoch\n", "epoch\n", "end\n", "epoch\n"])) == [0, 1]
    told = train.told_epochs(["epoch\n"])
    assert next(told) == 0
    with pytest.raises(EOFError, match="whoever started this has ended"):
        next(told)
    with pytest.raises(ValueError, match="'enough'"):
        next(train.told_epochs(["enough\n"]))


def test_told_epochs_train_what_planned_ones_do() -> None:
    plan = train.Plan(epochs=2, size=8)
    planned = train.train(plan, train.OneProcess(8), lambda step: None)
    told = train.train(plan, train.OneProcess(8), lambda step: None, told=range(2))
    assert told.digests == planned.digests
    assert {step.steps for step in told.steps} == {None}


def test_counters_of_a_daemon_that_starts_anew_go_on() -> None:
    tally = Tally()
    for frames in (5, 7, 2, 3, 0, 4):
        tally.add("leaf0", {"frames": frames})
    tally.add("spine", {"frames": 10, "lost": 1})
    assert tally.of("leaf0", "frames") == 7 + 3 + 4
    assert tally.total("frames") == 24
    assert tally.total("lost") == 1
    assert tally.total("nothing") == 0


def test_the_fabric_file_is_one_that_switches_take(tmp_path: Path) -> None:
    config = FabricConfig(relayed=("leaf1",))
    file = tmp_path / "fabric.toml"
    file.write_text(fabric_toml(config, tmp_path))
    for name in config.switches:
        loaded = load_switch_settings({"fabric": str(file), "name": name}, None, {})
        assert loaded.settings.dir == tmp_path / name
    assert [config.leaf_of(host) for host in range(config.hosts)] == ["leaf0", "leaf0", "leaf1", "leaf1"]


def test_a_cluster_may_have_further_spines(tmp_path: Path) -> None:
    config = FabricConfig(spines=2, relayed=("leaf1",))
    assert config.switches == ("spine", "spine1", "leaf0", "leaf1")
    (tmp_path / "fabric.toml").write_text(fabric_toml(config, tmp_path))
    entries = load_fabric(tmp_path / "fabric.toml").entries
    assert [(entry.above, entry.further) for entry in entries] == [
        (None, ()),
        (None, ()),
        ("spine", ("spine1",)),
        ("spine", ("spine1",)),
    ]
    assert entries[3].trunk == tmp_path / "link-leaf1.sock"


def outcome(weights: str = "same") -> dict[str, object]:
    steps = [
        {"step": step, "ended_s": 100.0 + step, "sum_s": 0.01 * step, "loss": 1.0 / step}
        for step in range(1, 8)
    ]
    return {"steps": steps, "digests": [weights], "digest": weights, "accuracy": [0.5], "parameters": 9,
            "wall_s": 7.0}  # fmt: skip


def result(**changes: object) -> racks.Result:
    made = racks.Result(
        ranks=[outcome() for _ in range(8)],
        reference=outcome(),
        weights=[b"same"] * 8,
        reference_weights=b"same",
        start_s=100.0,
        events=[Event(2.5, REBOOT, "a"), Event(3.0, FALLBACK, "b"), Event(5.0, RETURNED, "c")],
        paths=[
            PathSample(0.5, "running", "switch"),
            PathSample(2.5, "halted", "switch"),
            PathSample(3.5, "running", "chain"),
            PathSample(5.0, "running", "switch"),
        ],
        wire=[
            WireSample(at_s, int(at_s), int(at_s), int(at_s), int(at_s), int(at_s))
            for at_s in (1.0, 5.0, 7.0)
        ],
        sums=[dict.fromkeys(("spine", "leaf0", "leaf1"), packets) for packets in (10, 20, 30)],
        plan="[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]",
        job=replace(SWITCHES, recoveries=5),
        rendezvous={"fallbacks": 2, "returns": 2, "recoveries": 5},
        cuts=1,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_good_run_is_summed_up_and_drawn(tmp_path: Path) -> None:
    summary = racks.summarise(CONFIG, result(), {})
    json.dumps(summary)
    assert racks.verdict(summary) == []
    assert racks.last_line(summary).startswith("identical=yes fallbacks=2 returned=yes accuracy=0.50 ")
    assert summary["steps_by_path"] == {"switch": 5, "chain": 1}  # and one while it was halted
    assert summary["p50_ms_by_path"]["chain"] == pytest.approx(40.0)
    assert summary["summed_after_return"] == {"spine": 10, "leaf0": 10, "leaf1": 10}
    racks_plot.draw(summary, racks.series(result()), tmp_path / "racks.png")
    assert (tmp_path / "racks.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"weights": [b"same"] * 7 + [b"else"]}, "the weights differ"),
        ({"plan": "[0, 1, 2, 3, 4, 5, 6, 7]"}, "added in the order"),
        ({"rendezvous": {"fallbacks": 0, "returns": 0, "recoveries": 5}}, "never summed themselves"),
        ({"job": replace(HOSTS, recoveries=5)}, "did not return"),
        ({"job": replace(HALTED, recoveries=5)}, "did not return"),
        ({"job": SWITCHES}, "did not return"),  # other rings followed
        ({"job": None}, "did not return"),
        ({"events": []}, "did not return"),
        (
            {"sums": [{"spine": 1, "leaf0": 1}, {"spine": 2, "leaf0": 5}, {"spine": 3, "leaf0": 5}]},
            "did not return",
        ),
        ({"cuts": 0}, "of 1 flaps"),
    ],
)
def test_what_is_wrong_with_a_run_is_said(changes: dict[str, object], problem: str) -> None:
    summary = racks.summarise(CONFIG, result(**changes), {})
    assert len(racks.verdict(summary)) == 1
    assert problem in racks.verdict(summary)[0]
    good = ("identical=yes" in racks.last_line(summary)) and ("returned=yes" in racks.last_line(summary))
    assert good == (problem not in ("the weights differ", "did not return"))


def test_options_of_an_act_follow_its_name() -> None:
    done = CliRunner().invoke(demo, ["--seed", "3", "--out", "x", "racks"])
    assert done.exit_code == 2
    assert "--seed, --out: the options of an act follow its name" in done.output
    done = CliRunner().invoke(demo, ["racks", "--batch", "60"])
    assert done.exit_code == 2
    assert "--batch 60 must be a multiple of the 8 ranks" in done.output


@pytest.mark.parametrize("act", [[], ["racks"]])
def test_an_installation_without_the_source_tree_says_so(
    monkeypatch: pytest.MonkeyPatch, act: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "examples.digits", None)
    done = CliRunner().invoke(demo, act)
    assert done.exit_code == 1
    assert "examples/digits of the source tree, which is not here" in done.output
