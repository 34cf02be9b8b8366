"""The suite for accelerators: the software core keeps every rule, a careless one is told what it breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from inaproto.errors import InvariantBroken
from inaproto.wire.ina_header import INA_HEADER_BYTES, InaHeader
from inaproto.wire.roce import RocePacket
from inaproto_hil.conformance.command import accelerator
from inaproto_hil.conformance.ring import Ring
from inaproto_hil.conformance.rules import RULES
from inaproto_hil.conformance.suite import Verdict, golden, judge, rules_of
from inaproto_hil.rtl.equivalence.compare import Report, field_at, output_difference
from inaproto_hil.rtl.parameters import Parameters, parameters_of
from tests.planted.planting import PlantedFault
from tests.planted.switch_faults import SWITCH_FAULTS

UNSEEN: Final = {
    "kept_result_recomputed": "what leaves is the same, until memory is used again",
    "replay_sealed_for_first_header": "its own frames have one length here",
    "port_down_forgotten": "no port goes down",
    "memory_not_given_back": "memory is not counted",
    "template_outlives_ring": "no ring is put in again with the same connections",
    "drop_not_counted": "counters are not looked at",
}
"""Faults of the switch that frames of the suite do not show, and why."""


async def verdicts(parameters: Parameters, frames: int = 0) -> list[Verdict]:
    return [verdict async for verdict in judge(golden(parameters), rules_of(1, frames))]


def broken(found: list[Verdict]) -> list[str]:
    return [f"{one.rule.name}: {one.broken.difference}" for one in found if one.broken is not None]


@pytest.mark.parametrize(
    "sizes",
    [
        "",
        "ports=2,children=2,rings=1,window=1,slots=8,mtu=64",
        "ports=6,children=6,rings=3,slots=512,mtu=1024",
    ],
)
async def test_the_software_core_keeps_every_rule_whatever_its_sizes(sizes: str) -> None:
    found = await verdicts(parameters_of(sizes), 300)
    assert broken(found) == []
    assert len(found) == len(RULES) + 2


def test_every_rule_says_where_it_is_written() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all("protocol" in rule.where or "NetReduce" in rule.where for rule in RULES)


@pytest.mark.parametrize("fault", SWITCH_FAULTS, ids=lambda fault: fault.name)
async def test_a_careless_switch_breaks_a_rule(fault: PlantedFault) -> None:
    with fault():
        try:
            found = broken(await verdicts(Parameters()))
        except (KeyError, InvariantBroken) as error:  # it falls over, which is a way to be found
            found = [repr(error)]
    assert bool(found) == (fault.name not in UNSEEN), UNSEEN.get(fault.name, "nothing was found")


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(accelerator, list(arguments))
    return done.exit_code, done.output


def test_the_command_says_that_all_hold(tmp_path: Path) -> None:
    status, said = run("--target", "software", "--frames", "100", "--json", str(tmp_path / "report.json"))
    assert status == 0, said
    assert "all hold" in said
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    assert report["broken"] == []
    assert len(report["rules"]) == len(RULES) + 2
    assert all(rule["holds"] for rule in report["rules"])


@pytest.mark.parametrize("shows_all", [False, True])
def test_the_command_tells_the_first_broken_rule_with_its_frame(shows_all: bool) -> None:
    (fault,) = [one for one in SWITCH_FAULTS if one.name == "result_not_marked"]
    with fault():
        status, said = run("--target", "software", "--frames", "0", *(["--all"] if shows_all else []))
    assert status == 1
    first = said.index("broken")
    told = said[first : said.index("the steps before, and it:", first)]
    assert "RESULT set" in told.splitlines()[0]
    assert "INA flags" in told
    assert "what should leave (port 1)" in told
    assert (said.count("what should leave") > 1) == shows_all


async def test_a_wrong_first_packet_that_is_taken_is_the_frame_that_is_told() -> None:
    (fault,) = [one for one in SWITCH_FAULTS if one.name == "wrong_key_accepted"]
    with fault():
        found = await verdicts(Parameters())
    (report,) = [one.broken for one in found if one.rule.name.startswith("A first packet of another ring")]
    assert report is not None
    assert report.difference is not None
    step = report.steps[report.difference.step]
    assert isinstance(step, tuple)
    _, came = step
    header = InaHeader.decode(RocePacket.decode_frame(came).payload[:INA_HEADER_BYTES])
    assert header.key not in {spec.key for spec in report.specs}


@pytest.mark.parametrize(
    ("offset", "at", "name"),
    [
        (0, 53, "BTH PSN"),
        (0, 61, "RETH address"),
        (0, 65, "RETH key"),
        (0, 69, "RETH length"),
        (0, 77, "INA flags"),
        (0, 81, "INA ring_id"),
        (0, 95, "INA rank"),
        (0, 109, "INA key"),
        (0, 110, "payload, byte 0 behind the INA header"),
        (1, 54, "payload, byte 0"),
        (3, 57, "immediate"),
        (3, -1, "ICRC"),
    ],
)
def test_a_byte_is_told_by_its_field(offset: int, at: int, name: str) -> None:
    frame = Ring(1).packet(0, 0, offset)
    assert field_at(frame, at % len(frame)) == name


def test_a_byte_of_an_answer_is_told_by_its_field() -> None:
    _, frame = Ring(1).answer(0)
    assert [field_at(frame, at) for at in (54, 57)] == ["AETH syndrome", "AETH MSN"]


def test_results_at_each_others_ports_are_not_told_as_wrong_bytes() -> None:
    due = Ring(1, ranks=4).results(0, 1)
    found = output_difference(0, due, [((port + 1) % 4, frame) for port, frame in due])
    assert found is not None
    assert found.says == "a frame leaves by port 2 instead of port 1"
    assert found.golden == found.other == due[0][1]
    told = list(Report((), ((0, b""),), found).lines())
    assert "what should leave (port 1):" in told
    assert "what left (port 2):" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "hardware"], "no target"),
        (["--target", "fpga:usb:x", "--port", "packet:lo"], "names no bus"),
        (["--target", "fpga:xdma:/none/x"], "a board needs --port"),
        (["--target", "software", "--port", "packet:lo"], "ports are for a board"),
        (["--target", "fpga:socket:/none/csr"], "/none/csr"),
        (["--target", "rtl:colour=3"], "NAME=NUMBER"),
    ],
)
def test_a_target_that_is_none(arguments: list[str], says: str) -> None:
    status, said = run(*arguments)
    assert status == 2
    assert says in said
