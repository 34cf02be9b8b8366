"""``inaproto bench training``: which steps count, what is made of them, and when it does not help."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from inaproto.daemon.settings.config import HostSettings
from inaproto_hil.bench.peers.tools import Tools
from inaproto_hil.bench.training.command import find_paths, training_bench
from inaproto_hil.bench.training.config import ALONE, COMMUNICATION, SCRIPT, TRAINING, Config
from inaproto_hil.bench.training.figures import Measured, Parts, document, link_s, reasons
from inaproto_hil.bench.training.picture import drawing
from inaproto_hil.bench.training.places import layers, why_no_backend
from inaproto_hil.bench.training.runs import TurnResult, launched, path_of
from inaproto_hil.bench.training.steps import Step, StepLog, agreement, counted, loss_difference, sample
from inaproto_hil.bench.training.table import show

CONFIG = Config(models=("vgg",), ranks=(4,), rates_bps=(200_000_000,), rounds=3)
ENV = {
    "cpu": "some",
    "cores_usable": 2,
    "cores": 2,
    "kernel": "6",
    "load": [1.0, 1, 1],
    "load_after": [2.5, 1, 1],
}


def steps(*seconds: float, turn: int = 1, losses: Sequence[float] = (), digest: str = "") -> list[Step]:
    """Of one rank, numbered from 1."""
    return [
        Step(nth, one, losses[nth - 1] if losses else 4.0, turn, 4.0 if digest else None, digest or None)
        for nth, one in enumerate(seconds, 1)
    ]


def turn(seconds: float, *, cpu_s: float = 0.5, machine_cpu_s: float = 2.0) -> TurnResult:
    """Of five steps in 4 s on 2 cores; three of the steps count."""
    return TurnResult(
        seconds=((seconds,) * 3,) * 4,
        sample_s=seconds,
        steps=5.0,
        cpu_s={"switch": cpu_s, "ranks": 2 * cpu_s},
        machine_cpu_s=machine_cpu_s,
        whole_s=4.0,
    )


def measured(
    ours: Sequence[float],
    gloo: Sequence[float],
    *,
    compute: float = 0.1,
    communication: float = 0.6,
    ranks: int = 4,
    machine_cpu_s: float = 2.0,
    digest: str = "aa",
) -> Measured:
    turns = {
        ("inaproto", TRAINING): tuple(turn(one, machine_cpu_s=machine_cpu_s) for one in ours),
        ("gloo", TRAINING): tuple(map(turn, gloo)),
        ("inaproto", COMMUNICATION): (turn(communication),),
        ("gloo", COMMUNICATION): (turn(2 * communication),),
        (ALONE, ALONE): (turn(compute),),
    }
    curves = {"inaproto": 4.25, "gloo": 4.0}
    of_ranks = {
        (name, TRAINING): [
            *[steps(1.0, 1.0, losses=(5.0, loss), digest="aa") for _ in range(ranks - 1)],
            steps(1.0, 1.0, losses=(5.0, loss), digest=digest if name == "inaproto" else "aa"),
        ]
        for name, loss in curves.items()
    }
    return Measured(
        "vgg", ranks, 200_000_000, 1_000_000, turns, of_ranks, {"inaproto": "switch"}, {"inaproto": 2.0}
    )


def report(*found: Measured, config: Config = CONFIG) -> dict[str, Any]:
    peers = {"inaproto": {"measured": True, "version": "inaproto 1", "why_not": None}}
    peers["gloo"] = {"measured": False, "version": None, "why_not": "torch is not installed"}
    return document(config=config, env=ENV, peers=peers, measured=found)


def shown(told: dict[str, Any]) -> str:
    text = io.StringIO()
    show(Console(file=text, width=150), told)
    return text.getvalue()


# --- which steps count


def test_the_step_that_a_stop_hit_and_the_one_after_do_not_count() -> None:
    assert counted(steps(9.0, 5.0, 1.0, 2.0)) == [1.0, 2.0]


def test_a_sample_is_the_mean_over_the_ranks_of_the_medians_of_what_counts() -> None:
    assert sample([steps(9, 9, 1, 2, 30), steps(9, 9, 4, 4, 4)]) == pytest.approx(3.0)


def test_lines_belong_to_the_turn_in_which_they_come() -> None:
    log = StepLog(2)
    line = {"step": 1, "seconds": 0.5, "loss": 4.0}
    assert log.take(0, json.dumps(line))
    log.turn = 1
    assert log.take(0, json.dumps(line | {"step": 2}))
    assert log.take(1, json.dumps(line | {"shared_loss": 3.0, "digest": "aa"}))
    assert [[step.number for step in one] for one in log.in_turn(1)] == [[2], [1]]
    assert log.ended(1) == 1
    assert log.ended(0) == 0
    assert log.ranks[1][0].check == (3.0, "aa")


def test_a_turn_is_as_far_as_its_last_rank() -> None:
    log = StepLog(2)
    for number in range(1, 4):
        log.take(0, json.dumps({"step": number, "seconds": 0.5, "loss": 4.0}))
    assert log.ended(0) == 0


@pytest.mark.parametrize("line", ["loading", "[1]", "{}", '{"step": 1}', '"step"', "3"])
def test_what_else_a_script_prints_is_not_taken(line: str) -> None:
    log = StepLog(1)
    assert not log.take(0, line)
    assert log.ranks == [[]]


def test_a_script_says_how_many_parameters_its_model_has() -> None:
    log = StepLog(1)
    assert log.take(0, json.dumps({"rank": 0, "parameters": 12}))
    assert log.hellos[0]["parameters"] == 12


# --- weights and losses


def test_ranks_agree_if_each_digest_and_shared_loss_is_equal() -> None:
    same = [steps(1, 1, digest="aa"), steps(1, 1, digest="aa")]
    assert agreement(same).differing == 0
    assert agreement(same).checks == 2
    other = [same[0], [same[1][0], replace(same[1][1], digest="bb")]]
    assert (agreement(other).checks, agreement(other).differing) == (2, 1)
    assert "step 2: rank 0: (4.0, 'aa'), rank 1: (4.0, 'bb')" in agreement(other).example
    of_loss = [same[0], [same[1][0], replace(same[1][1], shared_loss=4.0000001)]]
    assert agreement(of_loss).differing == 1


def test_a_rank_that_is_a_check_ahead_differs_in_nothing() -> None:
    assert agreement([steps(1, 1, 1, digest="aa"), steps(1, 1, digest="aa")]).checks == 2


def test_loss_curves_differ_by_their_largest_difference() -> None:
    mine = [steps(1, 1, losses=(4.0, 3.0)), steps(1, 1, 1, losses=(4.0, 3.5, 9.0))]
    theirs = [steps(1, 1, losses=(4.0, 3.25)), steps(1, 1, losses=(4.125, 3.5))]
    found = loss_difference(mine, theirs)
    assert found is not None
    assert (found.largest, found.at_step, found.loss, found.steps) == (0.25, 2, 3.25, 2)
    assert loss_difference(mine, [[], []]) is None


# --- figures


def test_what_a_step_is_made_of() -> None:
    assert Parts(0.9, 0.3, 0.6).overlap == pytest.approx(0.0)
    assert Parts(0.6, 0.3, 0.6).overlap == pytest.approx(1.0)
    assert Parts(0.9, 0.3, 0.6).exposed == pytest.approx(2 / 3)
    assert Parts(0.2, 0.3, 0.6).exposed == 0.0
    assert Parts(0.9, None, None).overlap is None
    assert Parts(0.69, 0.3, 0.6).to_longer == pytest.approx(1.15)
    assert Parts(0.9, 0.3, None).to_longer is None
    assert Parts(0.9, None, None).exposed is None


def test_a_row_has_medians_of_rounds_and_ratios_round_by_round() -> None:
    told = report(measured([0.6, 0.7, 0.5], [0.9, 1.4, 0.6]))
    ours, gloo = told["rows"]
    assert (ours["contender"], gloo["contender"]) == ("inaproto", "gloo")
    assert (ours["step_ms"], ours["step_ms_min"], ours["step_ms_max"]) == pytest.approx((600, 500, 700))
    assert (ours["compute_ms"], ours["communication_ms"]) == pytest.approx((100, 600))
    assert ours["samples_per_s"] == pytest.approx(4 * 8 / 0.6)
    assert ours["cpu_s_per_step"] == pytest.approx(1.5 / 5)
    assert ours["cpu_s_per_step_parts"] == pytest.approx({"switch": 0.1, "ranks": 0.2})
    assert ours["busy"] == pytest.approx(2.0 / (2 * 4))
    assert ours["others_share"] == pytest.approx(0.5 / (2 * 4))
    assert ours["exposed"] == pytest.approx(5 / 6)
    assert ours["overlap"] == pytest.approx(1.0)
    assert gloo["x_gloo"] is None
    [ratio] = told["ratios"]
    assert (ratio["contender"], ratio["peer"], ratio["rounds"]) == ("inaproto", "gloo", 3)
    assert (ratio["median"], ratio["min"], ratio["max"]) == pytest.approx((1.5, 1.2, 2.0))
    assert ours["x_gloo"] == pytest.approx(1.5)
    assert ours["losses"] == [[5.0, 4.25]] * 4
    assert ours["loss_difference"] == {"steps": 2, "largest": 0.25, "at_step": 2, "loss": 4.0}
    assert json.loads(json.dumps(told))["rows"][0]["step_ms"] == ours["step_ms"]


def test_a_ring_needs_its_link_for_longer() -> None:
    needed = [link_s(CONFIG, name, 4, 4_000_000, 200_000_000) for name in ("inaproto", "before", "gloo")]
    assert needed == pytest.approx([0.16 * 1082 / 1024, 0.16 * 1082 / 1024, 0.16 * 1.5])


def test_weights_that_differ_are_counted_and_named() -> None:
    told = report(measured([0.6], [0.9], digest="bb"))
    assert told["differing"] == 2
    assert "2 of 2 differ" in shown(told)
    assert "DIFFERENT, inaproto: vgg, 4 ranks, 200 Mbit/s: step 1: rank 0: (4.0, 'aa')" in shown(told)


# --- why it does not help


def why(**other: Any) -> list[str]:
    told = {"gain": 1.0, "ranks": 4, "gloo_exposed": 0.8, "busy_share": 0.5, "others": 0.0, "cores": 2}
    return reasons(**(told | other))


def test_nothing_is_said_where_it_helps() -> None:
    assert why(gain=1.05, ranks=2, gloo_exposed=0.01, busy_share=1.0) == []


def test_a_step_that_is_computation_has_little_to_gain() -> None:
    [line] = why(gloo_exposed=0.1)
    assert line.startswith("compute-bound: communication adds 10% to gloo's step")
    assert "x 1.11 to gain" in line


def test_two_ranks_and_busy_processors_are_reasons() -> None:
    assert [line.split(":")[0] for line in why(ranks=2, busy_share=0.85)] == ["W = 2", "CPU-bound"]


def test_a_machine_that_is_not_quiet_is_a_reason() -> None:
    [line] = why(others=0.1)
    assert line.startswith("not quiet: others use 10% of the cores")
    assert why(gain=1.2, others=0.5) == []


def test_what_no_rule_explains_is_not_explained() -> None:
    assert why() == ["no rule explains it: look at the spread, and at the daemons' CPU"]
    assert why(gloo_exposed=None)[0].startswith("no rule")


def test_reasons_stand_below_the_table() -> None:
    slow = shown(report(measured([0.8], [0.8], compute=0.75, machine_cpu_s=7.9)))
    assert "# vgg, 4 ranks, 200 Mbit/s: compute-bound: communication adds 6% to gloo's step" in slow
    assert "# vgg, 4 ranks, 200 Mbit/s: CPU-bound: 99% of the machine's 2 cores are in use" in slow
    assert "bound" not in shown(report(measured([0.6], [0.9])))


# --- table, picture, command


def test_the_table_has_a_line_for_each_contender_and_says_who_was_not_measured() -> None:
    text = shown(report(measured([0.6, 0.7, 0.5], [0.9, 1.4, 0.6])))
    assert re.search(r"vgg +4 +200 +inaproto +600 +500-700 +100 +600 +169 +83% +100% +53\.3 +0\.30", text)
    assert "1.50" in text
    assert "gloo: not measured: torch is not installed" in text
    assert "scale 1; medians" in text


def test_the_size_of_buckets_is_told_where_somebody_chose_it() -> None:
    told = report(measured([0.6], [0.9]), config=replace(CONFIG, bucket_mib=2.5))
    assert "scale 1, buckets of 2.5 MiB; medians" in shown(told)
    assert told["rows"][0]["bucket_mib"] == 2.0  # as the script says


def test_figures_that_were_not_measured_are_dashes() -> None:
    found = measured([0.6], [0.9])
    alone = replace(found, turns={key: one for key, one in found.turns.items() if key[1] == TRAINING})
    told = report(alone)
    assert told["rows"][0]["overlap"] is None
    assert re.search(r"inaproto +600 +600-600 +- +- +169 +- +- ", shown(told))
    assert "<svg" in drawing(told)


def test_the_picture_has_a_panel_for_each_number_of_ranks_and_rate() -> None:
    config = replace(CONFIG, ranks=(2, 4), rates_bps=(200_000_000, 1_000_000_000))
    text = drawing(report(measured([0.6], [0.9]), config=config))
    for title in ("2 ranks, 200 Mbit/s", "4 ranks, 1000 Mbit/s", "x 1.50", "computation alone"):
        assert title in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "alexnet"], "there are vgg, resnet, transformer, device"),
        (["--only", "mpi"], "there are inaproto, gloo"),
        (["--link", "fast"], "is not the rate of a link"),
        (["--ranks", "1"], "numbers of hosts from 2"),
        (["--script", "/nowhere/train.py"], "there is no script /nowhere/train.py"),
        (["--rounds", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(words: list[str], said: str) -> None:
    done = CliRunner().invoke(training_bench, words)
    assert done.exit_code == 2
    assert said in done.output


def test_help_teaches() -> None:
    text = " ".join(CliRunner().invoke(training_bench, ["--help"]).output.split())
    assert "Example: sudo inaproto bench training --ranks 4" in text
    assert "INAPROTO_TORCH=gloo" in text
    assert "Exit status 1" in text


# --- processes


def test_processes_are_told_what_a_launcher_tells_them() -> None:
    told = launched(3, 4, 29500)
    assert (told["RANK"], told["WORLD_SIZE"], told["MASTER_ADDR"]) == ("3", "4", "10.78.0.1")
    assert launched(0, 1, 29500)["MASTER_ADDR"] == "127.0.0.1"


def test_daemons_have_the_settings_that_they_have_by_themselves() -> None:
    links = CONFIG.links(4, 200_000_000)
    ours = links.window, links.message_packets, links.transport_timeout
    settings = HostSettings(name="h0", ip="10.0.0.1")
    assert ours == (settings.window_messages, settings.message_packets, settings.transport_timeout)


def test_a_job_that_torch_has_added_up_by_itself_is_told() -> None:
    assert path_of({"rings": [{"operations_by_path": {"switch": 3, "chain": 0}}]}) == "switch"
    assert path_of({"rings": [{"operations_by_path": {"switch": 0}}]}) == "none"
    assert path_of({"rings": []}) == "none"


def test_the_script_is_ordinary() -> None:
    text = SCRIPT.read_text()
    assert 'init_process_group("gloo")' in text
    assert "inaproto" not in text.lower()


def test_the_inaproto_of_a_python_is_found() -> None:
    import inaproto

    assert str(Path(inaproto.__file__).parents[1]) in layers(Path(sys.executable)).split(":")


def test_without_torch_nobody_is_measured_and_each_has_the_reason(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    python.chmod(0o755)
    tools = Tools(python, "ask for it")
    tools.look(["gloo"])
    why_not: dict[str, str] = {}
    assert find_paths(CONFIG, tools, why_not) == {}
    assert set(why_not) == {"inaproto", "gloo"}
    assert "ask for it" in why_not["gloo"]
    assert why_no_backend(tools, "") == "torch does not load inaproto.torch: no torch here"
