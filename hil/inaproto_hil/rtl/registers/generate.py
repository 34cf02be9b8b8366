"""Makes the register map of the control side, and its page, from ``inaccel.rdl``.

    python hil/inaproto_hil/rtl/registers/generate.py [--check]

It needs ``systemrdl-compiler``; what it makes does not. With ``--check`` it writes nothing and says what is
out of date. Names and texts come from the RDL alone, so that RTL, control side and page cannot differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from systemrdl.compiler import RDLCompiler

SOURCE: Final = Path(__file__).with_name("inaccel.rdl")
TREE: Final = Path(__file__).resolve().parents[4]
MAP: Final = TREE / "adapters" / "inaproto_adapters" / "fpga" / "register_map.py"
PAGE: Final = TREE / "docs" / "accelerator-registers.md"
ROWS: Final = ("conn_row", "ring_row", "place_row", "tree_row", "state_row")
LINE: Final = 110
DROP: Final = "drop_"
"""What names of counters begin with whose names are rules of the core."""


class FieldOf(NamedTuple):
    name: str
    low: int
    width: int
    access: str
    reset: int | None
    is_pulse: bool
    text: str
    encode: str

    @property
    def bits(self) -> str:
        return f"{self.low}" if self.width == 1 else f"{self.low + self.width - 1}:{self.low}"


class RegisterOf(NamedTuple):
    name: str
    address: int
    length: int
    """Registers of an array; 0: it is none."""
    width: int
    text: str
    fields: tuple[FieldOf, ...]


class Member(NamedTuple):
    name: str
    value: int
    title: str
    text: str


class Description(NamedTuple):
    """All that the RDL says."""

    registers: tuple[RegisterOf, ...]
    rows: dict[str, tuple[RegisterOf, ...]]
    enums: dict[str, tuple[Member, ...]]


def read(source: Path = SOURCE) -> Description:
    compiler = RDLCompiler()
    compiler.compile_file(str(source))
    enums: dict[str, tuple[Member, ...]] = {}

    def registers_of(top: str) -> tuple[RegisterOf, ...]:
        nodes = compiler.elaborate(top_def_name=top).top.registers(unroll=False)
        return tuple(_register(node, enums) for node in nodes)

    registers = registers_of("inaccel")
    return Description(registers, {row: registers_of(row) for row in ROWS}, enums)


def _register(node: Any, enums: dict[str, tuple[Member, ...]]) -> RegisterOf:
    fields = []
    for field in node.fields():
        encode = field.get_property("encode")
        if encode is not None:
            enums[encode.type_name] = tuple(
                Member(one.name, int(one.value), one.rdl_name, one.rdl_desc) for one in encode
            )
        fields.append(
            FieldOf(
                field.inst_name,
                field.low,
                field.width,
                field.get_property("sw").name,
                field.get_property("reset"),
                bool(field.get_property("singlepulse")),
                field.get_property("desc") or "",
                "" if encode is None else encode.type_name,
            )
        )
    (length,) = node.array_dimensions or (0,)
    width = node.get_property("regwidth")
    text = node.get_property("desc") or ""
    return RegisterOf(node.inst_name, node.raw_address_offset, length, width, text, tuple(fields))


# -- the module --------------------------------------------------------------------------------------

_HEAD: Final = '''"""Registers of the accelerator, its counters, and rows of its tables.

Made by hil/inaproto_hil/rtl/registers/generate.py from inaccel.rdl, which says what they mean: change that.
The RTL takes the same numbers from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from inaproto.errors import LocalMisuse

WORD_BYTES: Final = 4
ROW_WORDS: Final = 8


class Field(NamedTuple):
    """Bits of a word."""

    word: int
    """Address of the register; of a row: number of the word."""
    low: int
    width: int

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1 << self.low

    def of(self, word: int) -> int:
        """Its value in a word."""
        return (word & self.mask) >> self.low

    def at(self, value: int) -> int:
        """A word with that value there and zeros elsewhere."""
        if value < 0 or value >> self.width:
            raise LocalMisuse(f"{value} does not fit in {self.width} bits")
        return value << self.low


Row = Mapping[str, tuple[Field, ...]]
"""A row of a table: each value with the parts that it lies in, the lowest first."""


def pack(row: Row, **values: int) -> list[int]:
    """Words of a row; what is not named is 0. Raises ``LocalMisuse`` for what does not fit."""
    words = [0] * ROW_WORDS
    for name, value in values.items():
        for part in row[name][:-1]:
            words[part.word] |= part.at(value & (1 << part.width) - 1)
            value >>= part.width
        last = row[name][-1]
        words[last.word] |= last.at(value)
    return words


def unpack(row: Row, words: Sequence[int]) -> dict[str, int]:
    """Values of a row."""
    values = {}
    for name, parts in row.items():
        value = 0
        for part in reversed(parts):
            value = value << part.width | part.of(words[part.word])
        values[name] = value
    return values


def decode(address: int, word: int) -> tuple[str, dict[str, int]]:
    """(name of a register, its fields by name), for people; ("", {}) where there is none."""
    if CNT <= address < CNT + CNT_COUNT * CNT_STEP:
        number, half = divmod((address - CNT) // WORD_BYTES, 2)
        return f"CNT{number}", {"high" if half else "low": word}
    if CLAIM_NAME <= address < CLAIM_NAME + CLAIM_NAME_COUNT * CLAIM_NAME_STEP:
        return f"CLAIM_NAME{(address - CLAIM_NAME) // CLAIM_NAME_STEP}", {"value": word}
    if TBL_DATA <= address < TBL_DATA + TBL_DATA_COUNT * TBL_DATA_STEP:
        return f"TBL_DATA{(address - TBL_DATA) // TBL_DATA_STEP}", {"value": word}
    name, fields = REGISTERS.get(address, ("", {}))
    return name, {field: bits.of(word) for field, bits in fields.items()}
'''


def module(description: Description) -> str:
    parts = [_HEAD, *_enums(description), *_constants(description), *_rows(description)]
    return "\n".join(parts)


def _enums(description: Description) -> Iterator[str]:
    texts = {
        "Table": "Tables, as TBL_CMD names them.",
        "Counter": "Counters in their order. Those of drops are the rules in FAULT and in STATE rows, too.",
    }
    for name, members in sorted(description.enums.items(), reverse=True):
        yield f'\nclass {name}(IntEnum):\n    """{texts[name]}"""\n'
        yield "".join(f"    {one.name.upper()} = {one.value}\n" for one in members)
    counters = description.enums["Counter"]
    yield "\nCOUNTER_NAMES: Final[dict[Counter, str]] = {"
    yield "".join(f'    Counter.{one.name.upper()}: "{one.title}",\n' for one in counters) + "}"
    yield '"""A drop has the name of its rule in the software core."""\n'
    yield "RULES: Final[dict[Counter, str]] = {"
    chosen = f'counter.name.startswith("{DROP.upper()}")'
    yield f"    counter: name for counter, name in COUNTER_NAMES.items() if {chosen}"
    yield '}\n"""Drops, with the rules of the core."""\n'


def _constants(description: Description) -> Iterator[str]:
    for register in description.registers:
        yield f"{register.name}: Final = 0x{register.address:03X}"
        if register.length:
            yield f"{register.name}_COUNT: Final = {register.length}"
            yield f"{register.name}_STEP: Final = {register.width // 8}"
            continue
        for field in register.fields:
            place = f"{register.name}, {field.low}, {field.width}"
            if field.width == 32:
                if field.access == "r" and field.reset is not None:
                    yield f"{register.name}_VALUE: Final = 0x{field.reset:08X}"
                continue
            yield f"{_constant(register, field)}: Final = Field({place})"
            if field.access == "r" and field.reset is not None:
                yield f"{_constant(register, field)}_VALUE: Final = {field.reset}"
    yield "\nREGISTERS: Final[dict[int, tuple[str, dict[str, Field]]]] = {"
    for register in description.registers:
        if not register.length:
            yield from _decoder_lines(register)
    yield '}\n"""Names of registers and of their fields, by address."""\n'


def _decoder_lines(register: RegisterOf) -> Iterator[str]:
    """An entry of the decoder, as ruff breaks it."""
    name, fields = register.name, []
    for field in register.fields:
        value = f"Field({name}, 0, 32)" if field.width == 32 else _constant(register, field)
        fields.append(f'"{field.name}": {value}')
    line = f'    {name}: ("{name}", {{{", ".join(fields)}}}),'
    if len(line) <= LINE:
        yield line
        return
    yield f'    {name}: (\n        "{name}",'
    line = f"        {{{', '.join(fields)}}},"
    if len(line) <= LINE:
        yield line
    else:
        yield "        {\n" + "".join(f"            {one},\n" for one in fields) + "        },"
    yield "    ),"


def _constant(register: RegisterOf, field: FieldOf) -> str:
    return f"{register.name}_{field.name.upper()}"


def _rows(description: Description) -> Iterator[str]:
    for row, registers in description.rows.items():
        parts: dict[str, list[str]] = {}
        for word, register in enumerate(registers):
            for field in register.fields:
                name = field.name.removesuffix("_low").removesuffix("_high")
                part = f"Field({word}, {field.low}, {field.width})"
                if field.name.endswith("_low"):
                    parts.setdefault(name, []).insert(0, part)
                else:
                    parts.setdefault(name, []).append(part)
        yield f"{row.upper()}: Final[Row] = {{"
        for name, places in parts.items():
            yield f'    "{name}": ({", ".join(places)}{"," if len(places) == 1 else ""}),'
        yield "}"
    yield ""


# -- the page ----------------------------------------------------------------------------------------

_INTRO: Final = """# Registers of the accelerator

Made by `hil/inaproto_hil/rtl/registers/generate.py` from `hil/inaproto_hil/rtl/registers/inaccel.rdl`:
change that. `inaproto_adapters.fpga.register_map` has the same as constants; `inaproto_adapters.fpga.device`
drives them.

Registers have 32 bits and byte addresses, and are read and written as a whole. Reading changes nothing;
unknown addresses read 0. A pulse acts once and reads 0.

A ring is put in by its CONN rows, then its RING row, whose `valid` makes it live; it is taken out in the
other order. A row is written to TBL_DATA, then TBL_CMD with `put`; when STATUS has no `table_busy` any more,
its `table_error` says whether the row was refused.

## Registers
"""


def page(description: Description) -> str:
    return "\n".join(
        [
            _INTRO,
            "| address | register | bits | field | access | meaning |",
            "|---|---|---|---|---|---|",
            *(line for register in description.registers for line in _register_lines(register)),
            "\n## Rows of tables\n\nWord n is TBL_DATA n. Bits that are not named are 0.\n",
            "| table | word | bits | field | meaning |",
            "|---|---|---|---|---|",
            *(line for row, registers in description.rows.items() for line in _row_lines(row, registers)),
            "\n| number | table | |\n|---|---|---|",
            *(f"| {one.value} | {one.title} | {one.text} |" for one in description.enums["Table"]),
            "\n## Counters\n\nThe name of a drop is the rule of the software core.\n",
            "| number | name | drop | counts |",
            "|---|---|---|---|",
            *(
                f"| {one.value} | {one.title} | {'yes' if one.name.startswith(DROP) else ''} | {one.text} |"
                for one in description.enums["Counter"]
            ),
            "",
        ]
    )


def _register_lines(register: RegisterOf) -> Iterator[str]:
    address, name = f"`0x{register.address:03X}`", register.name
    if register.length:
        step = register.width // 8
        address += f" to `0x{register.address + (register.length - 1) * step:03X}`, step {step}"
        name += f" 0 to {register.length - 1}"
    yield f"| {address} | {name} | | | | {register.text} |"
    for field in register.fields:
        access = "pulse" if field.is_pulse else {"r": "ro", "w": "wo", "rw": "rw"}[field.access]
        yield f"| | | {field.bits} | {field.name} | {access} | {_meaning(field)} |"


def _row_lines(row: str, registers: Sequence[RegisterOf]) -> Iterator[str]:
    title = row.removesuffix("_row").upper()
    for word, register in enumerate(registers):
        for field in register.fields:
            yield f"| {title} | D{word} | {field.bits} | {field.name} | {_meaning(field)} |"


def _meaning(field: FieldOf) -> str:
    words = [field.text] if field.text else []
    if field.access == "r" and field.reset is not None:
        words.insert(0, f"{field.reset:#x}" if field.width == 32 else f"{field.reset}")
    return "; ".join(words)


# -- the command -------------------------------------------------------------------------------------


def made() -> dict[Path, str]:
    """What is to be in each file."""
    description = read()
    return {MAP: module(description), PAGE: page(description)}


def stale() -> list[Path]:
    """Files that are not as the RDL says."""
    return [path for path, text in made().items() if not path.is_file() or path.read_text() != text]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say what is out of date")
    if parser.parse_args().check:
        found = stale()
        for path in found:
            print(f"{path.relative_to(TREE)} is out of date: run {Path(__file__).relative_to(TREE)}")
        return 1 if found else 0
    for path, text in made().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
