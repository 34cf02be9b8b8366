"""Captures of the kernel's RoCE stack, kept in tests/data/captures: the inspection blames it for nothing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from inaproto.wire.files.capture_reader import read_capture
from inaproto.wire.files.pcapng import CapturedFrame, Direction
from inaproto_hil.inspect.findings import RULES
from tests.inspect.captures import Passed, frames_of, inspect
from tests.inspect.damages import DAMAGES

FOLDER = Path(__file__).parents[1] / "data" / "captures"


def capture(name: str) -> list[CapturedFrame]:
    return read_capture(gzip.decompress((FOLDER / f"{name}.pcapng.gz").read_bytes()))


@pytest.mark.parametrize("name", ["kernel-writes", "kernel-ring"])
def test_a_clean_capture_of_the_kernel_breaks_no_rule(name: str) -> None:
    inspector, found = inspect(capture(name))
    assert not found, found[0].as_dict()
    assert inspector.roce > 150


@pytest.mark.parametrize("name", ["kernel-writes", "kernel-ring"])
def test_nor_do_its_ports_one_by_one_without_directions(name: str) -> None:
    frames = capture(name)
    for port in {frame.interface.name for frame in frames}:
        here = [one._replace(direction=Direction.UNKNOWN) for one in frames if one.interface.name == port]
        inspector, found = inspect(here)
        assert not found, found[0].as_dict()
        assert inspector.books.checked["ICRC"]


def test_the_sums_of_its_ring_are_computed_again() -> None:
    inspector, _ = inspect(capture("kernel-ring"))
    checked = inspector.books.checked
    assert checked["wrong sum"] == 3 * 25, "24 KiB and a header a message, over three connections"
    assert {rule.name for rule in RULES} - checked.keys() == {
        "NAK of what was not missing",
        "retransmission differs",
    }


def test_a_lost_packet_and_what_follows_are_noted() -> None:
    inspector, _ = inspect(capture("kernel-writes"))
    assert inspector.books.notes["NAKs"] == 2, "one, on its way in and on its way out"
    assert inspector.books.notes["packets sent again"] >= 5


def test_one_damaged_bit_is_found_in_every_packet() -> None:
    frames = capture("kernel-ring")
    for frame in frames:
        if len(frame.data) < 62 or frame.data[36:38] != b"\x12\xb7":
            continue
        data = bytearray(frame.data)
        data[-6] ^= 4
        _, found = inspect([frame._replace(data=bytes(data))])
        assert [one.rule.name for one in found] == ["ICRC"]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_packet_among_the_kernel_s_is_named(name: str) -> None:
    rule, damage = DAMAGES[name]
    ports: dict[str, int] = {}
    passed = [
        Passed(
            0,
            ports.setdefault(one.interface.name, len(ports)),
            one.when_ns or 0,
            one.direction,
            one.data,
        )
        for one in capture("kernel-ring")
    ]
    damaged, wrong = damage(passed)
    _, found = inspect(frames_of(damaged))
    assert found, "nothing was found"
    assert (found[0].rule.name, found[0].frame.number) == (rule, wrong + 1), found[0]
