"""Wireshark's tools as outside judges of captures that we write, and of our dissector of the INA header."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import inaproto_hil
from inaproto.wire.files.pcapng import Direction
from inaproto_hil.inspect.findings import Books
from inaproto_hil.inspect.packets import Seen, look
from tests.inspect.captures import Passed, frames_of, pcapng, ring_world, tap

DISSECTOR = Path(inaproto_hil.__file__).parent / "wireshark" / "inaproto.lua"
NUMBERS = ("ring_id", "epoch", "op_index", "msg_id", "rank", "ring_size", "msg_len", "dtype", "op")
FRAME = (
    "frame.number",
    "frame.interface_name",
    "frame.packet_flags_direction",
    "frame.time_epoch",
    "frame.len",
)


@pytest.fixture(scope="module")
def passed() -> list[Passed]:
    return tap(ring_world("judges", elements=(900, 1, 300)))


@pytest.fixture
def path(passed: list[Passed], tmp_path: Path) -> Path:
    found = tmp_path / "switch.pcapng"
    found.write_bytes(pcapng(passed))
    return found


def fields(tshark: Path, path: Path, names: tuple[str, ...], *options: str | Path) -> list[list[str]]:
    argv: list[str | Path] = [
        tshark,
        "-n",
        "-r",
        path,
        *options,
        "-T",
        "fields",
        *(part for name in names for part in ("-e", name)),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_tshark_reads_ports_directions_and_times(
    program: Callable[[str], Path], path: Path, passed: list[Passed]
) -> None:
    got = fields(program("tshark"), path, FRAME)
    assert len(got) == len(passed)
    for number, (row, one) in enumerate(zip(got, passed, strict=True), 1):
        seconds, _, parts = row[3].partition(".")
        assert row[:2] == [str(number), f"port{one.port}"]
        assert int(row[2], 0) == one.direction in (Direction.INBOUND, Direction.OUTBOUND)
        assert int(seconds) * 10**9 + int(parts) == one.when_ns
        assert int(row[4]) == len(one.data)


def test_capinfos_takes_the_file(program: Callable[[str], Path], path: Path, passed: list[Passed]) -> None:
    argv: list[str | Path] = [program("capinfos"), "-M", "-c", "-t", "-I", path]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    words = " ".join(said.split())
    assert "pcapng" in words
    assert f"Number of packets: {len(passed)}" in words
    assert words.count("Time precision = nanoseconds (9)") == 3, "of each port"


def test_the_dissector_shows_what_our_decoder_says(
    program: Callable[[str], Path], path: Path, passed: list[Passed]
) -> None:
    names = ("frame.number", *(f"inaproto.{name}" for name in NUMBERS))
    names += (
        "inaproto.flags.last",
        "inaproto.flags.result",
        "inaproto.signature",
        "inaproto.key",
        "inaproto.version",
    )
    got = fields(program("tshark"), path, names, "-X", f"lua_script:{DISSECTOR}", "-Y", "inaproto")
    expected = []
    for frame in frames_of(passed):
        seen = look(frame, Books())
        if isinstance(seen, Seen) and seen.ina is not None:
            ina = seen.ina
            row = [str(frame.number), *(str(int(getattr(ina, name))) for name in NUMBERS)]
            row += [
                str(int(ina.is_last)),
                str(int(seen.is_result)),
                f"0x{ina.signature:04x}",
                f"{ina.key:016x}",
                "1",
            ]
            expected.append(row)
    assert len(expected) > 20
    assert got == expected
