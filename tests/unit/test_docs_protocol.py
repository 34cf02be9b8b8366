"""What ``docs/protocol.md`` says of messages, layouts, codes and limits is what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from inaproto.daemon.settings.config import HostSettings, SwitchSettings
from inaproto.errors import JOB_ERRORS
from inaproto.units import FRAME_BYTES_MAX
from inaproto.wire.control import ARRAY_ITEMS_MAX, DEPTH_MAX, MAP_ITEMS_MAX, MESSAGE_BYTES_MAX
from inaproto.wire.control_messages import MESSAGES
from inaproto.wire.host_header import HOST_MAGIC
from inaproto.wire.ina_header import MAGIC, Dtype, InaHeader, Op
from inaproto.wire.messages.clocks import CLOCK_MAX, NODES_MAX, ClocksKind
from inaproto.wire.messages.fields import (
    ARRAYS,
    Behind,
    Blob,
    Choice,
    FreeMap,
    Integer,
    Kind,
    Many,
    OneOf,
    Record,
    Text,
    field_kinds,
)
from inaproto.wire.messages.models import EpochKind
from inaproto.wire.messages.switch import RING_RANKS_MAX
from inaproto.wire.tree_note import NoteKind, TreeNote

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()
_ROW: Final = re.compile(r"^\|(.+)\|$", re.MULTILINE)
_FIELD: Final = re.compile(r"`(\w+)`(\??) ([^`]+?)(?= = |, `|$)")

_INTEGERS: Final = {
    (0, 0xFF): "u8",
    (0, 0xFFFF): "u16",
    (0, 0xFF_FFFF): "u24",
    (0, 0xFFFF_FFFF): "u32",
    (0, (1 << 64) - 1): "u64",
    (1, 0xFFFF): "u16+",
    (1, 0xFFFF_FFFF): "u32+",
    (1, (1 << 64) - 1): "u64+",
    (256, 4096): "mtu",
    (0, CLOCK_MAX): "clock",
}
_TEXTS: Final = {(1, 128): "name", (0, 256): "secret", (1, 1024): "path", (0, 8192): "text"}
_OCTETS: Final = {6: "mac", 4: "ip", 16: "gid"}


def rows(section: str) -> list[list[str]]:
    """Cells of the tables of a section, header rows and rules included."""
    text = PAGE.split(f"\n### {section} ")[1] if "." in section else PAGE.split(f"\n## {section}. ")[1]
    text = re.split(r"\n##+ \d", text)[0]
    return [[cell.strip() for cell in row.split("|")] for row in _ROW.findall(text)]


def name_of(kind: Kind) -> str:
    """The page's word for the limits of a field."""
    match kind:
        case Integer(low, high):
            return _INTEGERS.get((low, high), f"{low}..{high}")
        case Text(most, least):
            return _TEXTS.get((least, most), f"text {least}..{most}")
        case Choice():
            return "/".join(kind.values)
        case OneOf(values):
            return "/".join(values)
        case Many(Many(Integer(0, high), 2), nodes) if (high, nodes) == (CLOCK_MAX, NODES_MAX):
            return "clocks"
        case ClocksKind():
            return "clocks"
        case EpochKind():
            return "[clock; 4]"
        case Behind(least):
            return "0..1" if not least else "1"
        case Blob(most):
            return f"bytes {most:,}"
        case Many(item, most):
            return f"[{name_of(item)}; {most:,}]"
        case Record(cls):
            return cls.__name__
        case FreeMap():
            return "map"
        case _:
            return _OCTETS[kind.nbytes] if hasattr(kind, "nbytes") else "bool"


def said_of(cell: str) -> dict[str, tuple[str, bool]]:
    return {name: (kind, bool(optional)) for name, optional, kind in _FIELD.findall(cell)}


def has(cls: type[Any]) -> dict[str, tuple[str, bool]]:
    kinds = field_kinds(cls)
    return {
        (ARRAYS if isinstance(kinds[item.name][0], Behind) else item.name): (
            name_of(kinds[item.name][0]),
            kinds[item.name][1],
        )
        for item in fields(cls)
        if item.name != "id"
    }


TABLED: Final = {
    match[1]: match[2] for match in re.finditer(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_has_the_fields_that_the_page_says(kind: str) -> None:
    assert said_of(TABLED[kind]) == has(MESSAGES[kind])


def test_no_message_is_missing_or_told_twice() -> None:
    told = re.findall(r"^\| `(\w+)` \| [^|]*(?:→|ways|answer|snapshot|log)[^|]* \|", PAGE, re.MULTILINE)
    assert sorted(told) == sorted(MESSAGES)


def records() -> dict[str, type[Any]]:
    """Records within messages, at any depth."""
    found: dict[str, type[Any]] = {}

    def look(kind: Kind) -> None:
        if isinstance(kind, Many):
            look(kind.item)
        elif isinstance(kind, Record) and kind.cls.__name__ not in found:
            found[kind.cls.__name__] = kind.cls
            for inner, _ in field_kinds(kind.cls).values():
                look(inner)

    for message in MESSAGES.values():
        for kind, _ in field_kinds(message).values():
            look(kind)
    return found


def test_records_within_messages_are_those_of_the_page() -> None:
    told = {
        cells[0]: said_of(cells[1]) for cells in rows("10.3") if "`" in cells[-1] and cells[0] in records()
    }
    assert told == {name: has(cls) for name, cls in records().items()}


def layout(section: str) -> dict[str, tuple[int, int]]:
    """Offset and size of each field of a header's table."""
    return {
        cells[2]: (int(cells[0]), int(cells[1]))
        for cells in rows(section)
        if cells[0].isdigit() and cells[1].isdigit()
    }


INA: Final = {
    "dtype": Dtype.I64,
    "op": Op.MIN,
    "flags": 3,
    "ring_id": 0x0102_0304,
    "epoch": 0x0506_0708,
    "op_index": 0x090A_0B0C,
    "msg_id": 0x0D0E_0F10,
    "rank": 0x1112,
    "ring_size": 0x1314,
    "msg_len": 0x1516,
    "signature": 0x1718,
    "key": 0x191A_1B1C_1D1E_1F20,
}


def test_the_ina_header_is_laid_out_as_the_page_says() -> None:
    places, data = layout("3.5"), InaHeader(**INA).encode()  # type: ignore[arg-type]  # of each field its own
    expected = INA | {"magic": MAGIC, "version": 1}
    assert {
        name: int.from_bytes(data[at : at + size], "big") for name, (at, size) in places.items()
    } == expected
    assert sum(size for _, size in places.values()) == len(data)
    assert f"0x{HOST_MAGIC:08X}" in PAGE


def test_a_tree_note_is_laid_out_as_the_page_says() -> None:
    note = {"rank": 0x0102, "ring_id": 0x0304_0506, "epoch": 0x0708_090A, "msg_id": 0x0B0C_0D0E}
    note |= {"offset": 0x0F10, "count": 0x1112, "key": 0x1314_1516_1718_191A}
    data = TreeNote(kind=NoteKind.REPEATS, **note).encode()  # type: ignore[arg-type]  # has no header
    places = layout("3.7")
    expected = note | {"magic": 0x494E4154, "version": 1, "kind": 2}
    assert {
        name: int.from_bytes(data[at : at + size], "big") for name, (at, size) in places.items()
    } == expected


def test_element_types_and_operations_have_the_numbers_of_the_page() -> None:
    told = {cells[2]: cells[3] for cells in rows("3.5") if len(cells) == 4}
    assert told["dtype"] == "0 float32, 1 int32, 2 float16, 3 bfloat16, 4 float64, 5 int64"
    assert [member.name for member in Dtype] == ["F32", "I32", "F16", "BF16", "F64", "I64"]
    assert told["op"] == ", ".join(f"{int(op)} {op.name.lower()}" for op in Op)


def test_errors_of_jobs_are_those_of_the_page() -> None:
    told = {cells[0].strip("`"): cells[1].strip("`") for cells in rows("21") if cells[0].startswith("`")}
    assert told == {code: kind.__name__ for code, kind in JOB_ERRORS.items()}


def test_limits_are_those_of_the_page() -> None:
    told = {cells[0].strip("`"): cells[1] for cells in rows("20") if len(cells) == 2}
    host = {name: item.default for name, item in HostSettings.model_fields.items()}
    switch = {name: item.default for name, item in SwitchSettings.model_fields.items()}
    expected = {
        "path MTU": f"{host['mtu']}; 256, 512, 1024, 2048 or 4096",
        "N, messages in flight": f"{host['window_messages']}; a power of two to 1,024",
        "L, packets of a message": f"{host['message_packets']}; to 65,535",
        "rings of a switch": f"{switch['rings_max']}",
        "stall_ms`; `operation_timeout_ms": f"{host['stall_ms']:,}; {host['operation_timeout_ms']:,}",
        "recover_ms` of a switch; of a host": f"{switch['recover_ms']:,}; {host['recover_ms']:,}",
        "accelerator memory": f"{switch['memory_kib'] >> 20} GiB",
        "first retransmission timer; doublings; longest": f"4.096 µs * 2^{host['transport_timeout']}; 6; 1 s",
        "flows of a ring in a message": f"{RING_RANKS_MAX:,}",
        "control message; depth; array; map": (
            f"{MESSAGE_BYTES_MAX >> 20} MiB; {DEPTH_MAX}; {ARRAY_ITEMS_MAX:,}; {MAP_ITEMS_MAX:,}"
        ),
        "nodes of a tree of hosts in a message": f"{NODES_MAX:,}",
        "pool capacity": f"{switch['pool_rings']}, to 64",
        "frame on a port": f"{FRAME_BYTES_MAX:,} bytes",
    }
    assert {name: told[name] for name in expected} == expected
