"""A site's header of libsharp_coll compared with the layout table, by the site's own C compiler.

Each line of the C text that is made here asks for one fact, so that a line which does not compile names it.
Nothing of the library is called, and nothing is linked.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from inaproto.errors import ConfigError, Unsupported
from inaproto_adapters.sharp.layout import (
    CONSTANTS,
    DEFAULT_CONFIG,
    ENUMS,
    FUNCTIONS,
    STRUCTS,
    Field,
    Function,
    Struct,
)

SECONDS_MAX: Final = 60
HEADER: Final = "sharp/api/sharp_coll.h"
_ERROR: Final = re.compile(r"^[^\n:]*abi_check\.c:(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.MULTILINE)
_HEAD: Final = (
    "#include <stddef.h>",
    "#include <stdint.h>",
    "#include <stdio.h>",
    f"#include <{HEADER}>",
    "#define SAME(a, b) __builtin_types_compatible_p(a, b)",
)


class Asked(NamedTuple):
    """One line of the C text and what it asks about."""

    about: str
    expected: str
    line: str
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A fact that a header does not bear out."""

    about: str
    """``struct.member``, an enumerator or a function."""
    expected: str
    said: str
    """What the compiler said."""

    def __str__(self) -> str:
        return f"{self.about}: expected {self.expected}; {self.said}"


@dataclass(frozen=True, slots=True)
class AbiReport:
    """What a compiler said of a header."""

    include: str
    compiler: str
    asked: int
    mismatches: tuple[Mismatch, ...]
    absent: tuple[str, ...]
    """Functions that older libraries lack, and this one does."""

    @property
    def passes(self) -> bool:
        """Whether all that is there is as the table has it."""
        return not self.mismatches

    def record(self) -> dict[str, object]:
        """For ``json.dump``."""
        return {
            "include": self.include,
            "compiler": self.compiler,
            "asked": self.asked,
            "passes": self.passes,
            "mismatches": [
                {"about": its.about, "expected": its.expected, "said": its.said} for its in self.mismatches
            ],
            "absent": list(self.absent),
        }


def asked() -> Iterator[Asked]:
    """All facts, one by one."""
    for name, value in CONSTANTS.items():
        yield _assert(name, str(value), f"{name} == ({value})")
    for name in ENUMS:
        yield _assert(f"enum {name}", "4 bytes", f"sizeof(enum {name}) == 4")
    for struct in STRUCTS:
        yield _assert(struct.name, f"{struct.size} bytes", f"sizeof(struct {struct.name}) == {struct.size}")
        for field in (*struct.fields, *struct.overlaid):
            yield from _of_field(struct, field)
    yield _assert(
        DEFAULT_CONFIG,
        "a const struct sharp_coll_config",
        f"SAME(__typeof__(&{DEFAULT_CONFIG}), const struct sharp_coll_config *)",
    )
    for function in FUNCTIONS:
        yield _of_function(function)


def _assert(about: str, expected: str, condition: str, *, is_optional: bool = False) -> Asked:
    return Asked(about, expected, f'_Static_assert({condition}, "{about}");', is_optional)


def _of_field(struct: Struct, field: Field) -> Iterator[Asked]:
    about = f"{struct.name}.{field.path}"
    yield _assert(about, f"offset {field.at}", f"offsetof(struct {struct.name}, {field.path}) == {field.at}")
    kind = f"{field.kind}[{field.count}]" if field.count > 1 else field.kind
    member = f"((struct {struct.name} *)0)->{field.path}"
    yield _assert(about, kind, f"SAME(__typeof__({member}), {kind})")


def _of_function(function: Function) -> Asked:
    kind = f"{function.result} (*)({', '.join(function.parameters)})"
    condition = f"SAME(__typeof__(&{function.name}), {kind})"
    return _assert(function.name, kind, condition, is_optional=function.is_optional)


def c_text() -> str:
    """A C file that compiles where the header is as the table has it."""
    return "\n".join([*_HEAD, *(one.line for one in asked()), ""])


def compiler(wish: str = "") -> list[str]:
    """The C compiler's words: ``wish``, else ``CC``, else the first there is. Raises ``Unsupported``."""
    named = shlex.split(wish or os.environ.get("CC", ""))
    found = named or [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]
    if not found or shutil.which(found[0]) is None:
        missing = named[0] if named else "cc, gcc or clang"
        raise Unsupported("a C compiler", f"{missing} is not on PATH; for example: apt install gcc")
    return found


def check(include: Path, cc: str = "") -> AbiReport:
    """Compile the questions against ``include``.

    Raises ``ConfigError`` where the folder has no such header, or one that does not compile by itself, and
    ``Unsupported`` where there is no C compiler. Clang tells 20 mismatches at most.
    """
    if not (include / HEADER).is_file():
        raise ConfigError(f"include: {include} has no {HEADER}; give the folder above sharp/api")
    command = compiler(cc)
    lines = list(asked())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "abi_check.c").write_text(c_text())
        try:
            done = subprocess.run(
                [*command, "-std=gnu11", "-fsyntax-only", f"-I{include.resolve()}", "abi_check.c"],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C"},
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Unsupported("a C compiler", f"{shlex.join(command)}: {error}") from None
    mismatches, absent = _read(done.stdout, lines)
    if done.returncode and not mismatches and not absent:
        raise ConfigError(f"include: {HEADER} does not compile by itself: {done.stdout.strip()[:500]}")
    return AbiReport(str(include), shlex.join(command), len(lines), tuple(mismatches), tuple(absent))


def _read(said: str, lines: list[Asked]) -> tuple[list[Mismatch], list[str]]:
    mismatches: list[Mismatch] = []
    absent: list[str] = []
    for number, message in _ERROR.findall(said):
        at = int(number) - 1 - len(_HEAD)
        if not 0 <= at < len(lines):
            continue
        one = lines[at]
        if one.is_optional and "undeclared" in message:
            absent.append(one.about)
        elif not any((its.about, its.expected) == (one.about, one.expected) for its in mismatches):
            mismatches.append(Mismatch(one.about, one.expected, message))
    return mismatches, absent


def hash_of(library: Path) -> str:
    """SHA-256 of a library's bytes, in hexadecimal digits. Raises ``OSError``."""
    return sha256(library.read_bytes()).hexdigest()


def _record_file() -> Path:
    place = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(place) / "inaproto" / "sharp-abi.json"


def record_passed(library: Path, report: AbiReport) -> Path:
    """Keep that the headers of ``library`` were checked; returns the file. Raises ``OSError``."""
    file = _record_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    known = _recorded(file)
    known[hash_of(library)] = {"library": str(library), "include": report.include}
    scratch = file.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(known, indent=2) + "\n")
    scratch.replace(file)
    return file


def has_passed(library: Path) -> bool:
    """Whether a passing check is recorded for the bytes of ``library``."""
    try:
        return hash_of(library) in _recorded(_record_file())
    except OSError:
        return False


def _recorded(file: Path) -> dict[str, object]:
    try:
        known = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
