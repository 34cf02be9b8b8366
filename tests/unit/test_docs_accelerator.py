"""docs/accelerator.md against the code: what a board behind sockets must speak."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from inaproto_adapters.fpga import simulated

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "accelerator.md").read_text()
CODES = {"u8": "B", "u16": "H", "u32": "I"}


def test_operations_of_registers_behind_a_socket_are_those_of_the_page() -> None:
    said = re.findall(r"^\| (\d) \| ([A-Z_]+) \|", TEXT, re.MULTILINE)
    assert said == [(str(int(op)), op.name) for op in simulated.Op]


def test_packets_of_registers_behind_a_socket_are_those_of_the_page() -> None:
    for name, layout in (("request", simulated.REQUEST), ("answer", simulated.ANSWER)):
        (fields,) = re.findall(rf"^\| {name} \| ([^|]+) \|", TEXT, re.MULTILINE)
        sizes = re.findall(r"\b(u8|u16|u32)\b", fields)
        assert struct.Struct("<" + "".join(CODES[size] for size in sizes)).format == layout.format
    assert f"{simulated.BURST_WORDS_MAX} at most" in TEXT
    assert f"within {simulated.TIMEOUT_S:.0f} s" in TEXT
