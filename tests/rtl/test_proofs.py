"""What is proved of the RTL holds, each proof fails where a fault is planted, and none proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("amaranth")

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from click.testing import CliRunner

from inaproto.errors import LocalMisuse, Unsupported
from inaproto_hil.rtl import proofs
from inaproto_hil.rtl.command import rtl
from inaproto_hil.rtl.emitter import Emitter
from inaproto_hil.rtl.parameters import parameters_of
from inaproto_hil.rtl.proofs import PROPERTIES, SIZES, Property
from inaproto_hil.rtl.proofs.proof import Proof
from inaproto_hil.rtl.proofs.prover import Verdict, missing_tools, prove
from tests.conftest import end_without
from tests.rtl.faults import Planted, planted

pytestmark = pytest.mark.rtl

SMALLEST = "ports=2,words=2,rings=2,children=2,window=1,slots=8,mtu=64"
"""For faults that need no more."""
BY_NAME = {one.name: one for one in PROPERTIES}
LETS_BITS_OF_ANY_MESSAGE_COUNT = Planted(
    "bits of the slot's last tenant count",
    "engine.messages",
    "held = w.slots.read.data.valid & (w.slots.read.data.serial == place.serial)",
    "held = w.slots.read.data.valid",
)
BRIDGES_A_CONNECTION = Planted(
    "packets of the last connection are bridged",
    "engine.incoming",
    "with m.Elif(found.hit.any()):",
    "with m.Elif(found.hit[:-1].any()):",
)
FAULTS = (
    ("raw_gradients", "a_stranger", BRIDGES_A_CONNECTION),
    (
        "raw_gradients",
        "to_be_bridged",
        Planted(
            "damaged packets of the last connection are bridged",
            "engine.incoming",
            "& found.malformed.any()):",
            "& found.malformed[:-1].any()):",
        ),
    ),
    (
        "raw_gradients",
        "and_stays_until_it_has_left",
        Planted(
            "a frame is let go while it leaves",
            "engine.incoming",
            'with m.State("BRIDGE_WAIT"), m.If(~io.emitting):',
            'with m.State("BRIDGE_WAIT"):',
        ),
    ),
    (
        "raw_gradients",
        "the_row_is_as_put",
        Planted(
            "a connection is not put in", "engine.control", "row.valid.eq(w.word(2)[31])", "row.valid.eq(0)"
        ),
    ),
    ("tenants", "bits_are_those_of_the_message", LETS_BITS_OF_ANY_MESSAGE_COUNT),
    (
        "tenants",
        "bits_are_those_of_the_message",
        Planted(
            "a bit is the connection's, not the rank's",
            "engine.messages",
            "slot.seen.eq(bits | (1 << w.child)),",
            "slot.seen.eq(bits | (1 << w.number)[: p.children]),",
        ),
    ),
    (
        "tenants",
        "the_packet_is_of_its_message",
        Planted(
            "rings remember their messages in one place",
            "engine.work",
            "return self.number * self.p.regions + low",
            "return self.child * self.p.regions + low",
        ),
    ),
    (
        "tenants",
        "a_region_goes_to_a_newer_message",
        Planted(
            "an old message takes the region back",
            "engine.messages",
            "| (region.valid & behind(place.serial, region.serial))",
            "",
        ),
    ),
    (
        "tenants",
        "the_region_is_taken",
        Planted(
            "tensors of two shapes are summed",
            "engine.messages",
            "& (region.signature == seen.signature)",
            "",
        ),
    ),
    (
        "tenants",
        "it_is_intact",
        Planted(
            "a packet with a wrong ICRC is summed",
            "engine.incoming",
            "with m.Elif(~seen.whole | ~arrival.intact):\n            w.drop",
            "with m.Elif(~seen.whole):\n            w.drop",
        ),
    ),
    (
        "tenants",
        "the_region_is_the_messages",
        Planted(
            "a message without a region is summed",
            "engine.messages",
            "with m.If(~region.valid | (region.serial != place.serial)):\n            w.drop",
            "with m.If(~region.valid):\n            w.drop",
        ),
    ),
    (
        "receiver",
        "a_frame_is_shown_until_it_is_taken",
        Planted("a frame goes as the next one comes", "receiver", "(~self.there | overlong)", "1"),
    ),
    (
        "emitter",
        "a_frame_is_begun_with_room",
        Planted(
            "room at one of the ports is enough",
            "emitter",
            "(self.room & order.mask) == order.mask",
            "(self.room & order.mask).any()",
        ),
    ),
    (
        "queue",
        "there_is_room_for_what_is_owed",
        Planted(
            "room is told with a beat too few",
            "egress",
            "<= self._depth - self._reserve)",
            "<= self._depth - self._reserve + 1)",
        ),
    ),
    (
        "queue",
        "whole_frames_are_a_part",
        Planted(
            "frames are offered before they end", "egress", "(fetched != whole) &", "(fetched != written) &"
        ),
    ),
    (
        "align",
        "two_bytes_more_leave",
        Planted(
            "a full beat has no room", "align", "fits.eq(came.bytes <= room)", "fits.eq(came.bytes < room)"
        ),
    ),
    (
        "unalign",
        "two_bytes_less_leave",
        Planted(
            "a beat of nothing is kept", "align", "(came.bytes > SHIFT_BYTES)", "(came.bytes >= SHIFT_BYTES)"
        ),
    ),
)


@pytest.fixture(autouse=True)
def tools() -> None:
    missing = missing_tools()
    if missing:
        end_without("rtl", Unsupported("proofs", f"{', '.join(missing)} is missing; make rtl gets packages"))


def decided(one: Property, sizes: str = SIZES) -> Verdict:
    return prove(one.make(parameters_of(sizes)), one.run_cycles)


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.name)
def test_it_is_proved(one: Property) -> None:
    verdict = decided(one)
    assert not verdict.broken, verdict.story
    assert verdict.claims >= 2
    assert verdict.cells > 50


@pytest.mark.parametrize(("name", "step", "fault"), FAULTS, ids=[fault.name for _, _, fault in FAULTS])
def test_a_planted_fault_breaks_the_proof(name: str, step: str, fault: Planted) -> None:
    with planted(fault):
        verdict = decided(BY_NAME[name], SMALLEST)
    assert step in verdict.broken, verdict.story


def test_every_proof_is_broken_by_a_fault() -> None:
    assert {name for name, _, _ in FAULTS} == set(BY_NAME)


def test_a_raw_gradient_is_shown_on_its_way_out() -> None:
    with planted(BRIDGES_A_CONNECTION):
        story = decided(BY_NAME["raw_gradients"], SMALLEST).story
    begin, _, run = story.partition("a run from the initial values:\n")
    assert begin, story
    state = next(line for line in run.splitlines() if line.startswith("state"))
    path = state.split()[1:]
    assert path[0] == "IDLE"
    assert path[-4:] == ["LEARN_OTHER", "UNREGISTERED", "BRIDGE", "BRIDGE_OUT"]
    assert "broken: no_raw_gradient_leaves" in run


# ---- the prover, by blocks whose truth is known ------------------------------------------------------


class Counter(wiring.Component):
    """Counts to 5 and begins again."""

    def __init__(self) -> None:
        super().__init__({"up": In(1), "number": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        number = Signal(4)
        m.d.comb += self.number.eq(number)
        with m.If(self.up):
            m.d.sync += number.eq(Mux(number == 5, 0, number + 1))
        return m


def counter(claims: Callable[[Proof, Signal], None]) -> Verdict:
    proof = Proof()
    block = Counter()
    proof.open("counter", block)
    proof.show("number", block.number)
    claims(proof, block.number)
    return prove(proof, 8)


def test_what_holds_is_proved_and_what_does_not_is_shown_from_the_first_cycle() -> None:
    assert not counter(lambda proof, number: proof.claim("small", number <= 5)).broken

    verdict = counter(lambda proof, number: proof.claim("small", number <= 3))
    assert verdict.broken == ["small"]
    shown = verdict.story.partition("a run from the initial values:\n")[2].splitlines()
    name, *numbers = shown[1].split()
    assert (name, numbers[0], numbers[-1]) == ("number", "0", "4")
    assert numbers == sorted(numbers)  # it may wait


def test_a_proof_that_is_too_weak_says_so() -> None:
    verdict = counter(lambda proof, number: proof.claim("not_nine", number != 9))
    assert verdict.broken == ["not_nine"]
    assert "no run of up to 8 cycles from the initial values breaks a claim" in verdict.story

    def with_a_step(proof: Proof, number: Signal) -> None:
        proof.claim("not_nine", number != 9)
        proof.step("small", number <= 5)

    assert not counter(with_a_step).broken


def test_a_claim_of_what_never_happens_is_none() -> None:
    def claims(proof: Proof, number: Signal) -> None:
        proof.step("small", number <= 5)
        proof.claim("far", number == 0, number > 7)

    verdict = counter(claims)
    assert verdict.broken == ["far"]
    assert "its case never happens" in verdict.story


def test_assumptions_that_no_one_can_keep_prove_nothing() -> None:
    def claims(proof: Proof, number: Signal) -> None:
        proof.assume(number > 7)
        proof.claim("anything", number == 3)

    assert "anything" in counter(claims).broken


def test_names_that_are_gone_are_refused() -> None:
    proof = Proof()
    block = Emitter(parameters_of(SIZES))
    inside = proof.open("emitter", block)
    with pytest.raises(LocalMisuse, match="signals 'nombre'"):
        inside.signal("nombre")
    with pytest.raises(LocalMisuse, match="no state SLEEP"):
        inside.ongoing("IDLE", "SLEEP")
    proof.claim("those_that_are_there_are_not", inside.ongoing("ROOM"), block.stalled)
    assert not prove(proof, 0).broken


# ---- the command -------------------------------------------------------------------------------------


def test_the_command_tells_what_is_proved(tmp_path: Path) -> None:
    report = tmp_path / "proofs.json"
    done = CliRunner().invoke(rtl, ["prove", "--only", "align", "--only", "queue", "--json", str(report)])
    assert done.exit_code == 0, done.output
    told = json.loads(report.read_text())
    assert told["sizes"] == SIZES
    assert set(told["proofs"]) == {"align", "queue"}
    assert all(one["bound"] is None and one["claims"] for one in told["proofs"].values())
    assert CliRunner().invoke(rtl, ["prove", "--only", "everything"]).exit_code == 2


def test_the_command_fails_with_the_run_that_breaks_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_parameters: object) -> Proof:
        proof = Proof()
        block = Counter()
        proof.open("counter", block)
        proof.show("number", block.number)
        proof.claim("small", block.number < 2)
        return proof

    monkeypatch.setattr(proofs, "PROPERTIES", (Property("counter", "it stays below 2", broken),))
    done = CliRunner().invoke(rtl, ["prove"])
    assert done.exit_code == 1, done.output
    assert "a run from the initial values" in done.output
    assert "broken: small" in done.output
