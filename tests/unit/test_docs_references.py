"""What code and documentation refer to is there: pages, sections, files and modules of this repository.

A section of a paper is cited by the paper's name and its number (``MLNet 3.2``), and is not looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TREE: Final = Path(__file__).resolve().parents[2]
DOCS: Final = TREE / "docs"
CODE_ROOTS: Final = ("inaproto", "adapters", "controller", "hil", "tests")
PAGES: Final = sorted([*TREE.glob("*.md"), *DOCS.rglob("*.md")])
IMPORTS: Final = {
    "inaproto": TREE / "inaproto",
    "inaproto_adapters": TREE / "adapters" / "inaproto_adapters",
    "inaproto_controller": TREE / "controller" / "inaproto_controller",
    "inaproto_hil": TREE / "hil" / "inaproto_hil",
    "tests": TREE / "tests",
}

OUTSIDE: Final = frozenset({"PERFORMANCE.md"})
"""Pages of other projects."""
NOT_MODULES: Final = (
    "inaproto.ring_id",
    "inaproto.msg_id",
    "inaproto.flags.result",
    "inaproto.adapters",
    "inaproto.checks",
)
"""Fields of the Wireshark script, and entry point groups."""

_SECTIONS: Final = r"((?:\d+(?:\.\d+)*)(?:(?:,| and| to|, and) \d+(?:\.\d+)*)*)"
_CITED: Final = re.compile(rf"protocol\.md(?:``|`)?\)?,?\s+(?:sections?\s+|§\s*)?{_SECTIONS}")
_PAGE: Final = re.compile(r"(?<![\w*{}<>/.])((?:\.\./)?(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+\.md)\b")
_HEADING: Final = re.compile(r"([A-Za-z0-9_/-]+\.md)(?:``|`|\))?,? \"([^\"\n]+)\"")
_ANCHOR: Final = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
_PATH: Final = re.compile(
    r"`((?:inaproto|adapters|controller|hil|tests|deploy|examples|docs|\.ci)/[\w./-]*)(?:::(\w+))?"
)
_MODULE: Final = re.compile(
    r"`((?:inaproto|inaproto_adapters|inaproto_controller|inaproto_hil|tests)(?:\.\w+)+)"
)
_DOCSTRING_MODULE: Final = re.compile(r":mod:`~?(\.?[\w.]+)`")


@cache
def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def sources() -> Iterator[Path]:
    for root in CODE_ROOTS:
        yield from sorted(path for path in (TREE / root).rglob("*.py") if "__pycache__" not in path.parts)


@cache
def headings(page: Path) -> tuple[str, ...]:
    return tuple(re.findall(r"^#+ (.+?)\s*$", text_of(page), re.MULTILINE))


def slug(heading: str) -> str:
    """The anchor that a heading has, as GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def numbers() -> frozenset[str]:
    """Sections of the protocol, and numbered rules in them: 6.6.2 is rule 2 of 6.6."""
    found, section = set[str](), ""
    for line in text_of(DOCS / "protocol.md").splitlines():
        if heading := re.match(r"#+ (\d+(?:\.\d+)*)\.? ", line):
            section = heading[1]
            found.add(section)
        elif section and (rule := re.match(r"(\d+)\. ", line)):
            found.add(f"{section}.{rule[1]}")
    return frozenset(found)


SECTIONS: Final = numbers()


def page_named(name: str, where: Path) -> Path | None:
    places = (TREE / name, DOCS / name, where.parent / name)
    return next((place.resolve() for place in places if place.is_file()), None)


def missing(files: Iterator[Path] | list[Path], look: Callable[[Path, str], Iterator[str]]) -> list[str]:
    own = Path(__file__).resolve()
    return [
        f"{file.relative_to(TREE)}: {what}"
        for file in files
        if file != own
        for what in look(file, text_of(file))
    ]


def everything() -> list[Path]:
    return [*sources(), *PAGES]


def test_pages_that_are_named_are_there() -> None:
    def look(file: Path, text: str) -> Iterator[str]:
        named = (name for name in _PAGE.findall(text) if name not in OUTSIDE)
        yield from (name for name in named if page_named(name, file) is None)

    assert missing(everything(), look) == []


def test_sections_of_the_protocol_that_are_cited_are_there() -> None:
    def look(_: Path, text: str) -> Iterator[str]:
        for cited in _CITED.findall(text):
            yield from (number for number in re.findall(r"[\d.]*\d", cited) if number not in SECTIONS)

    assert missing(everything(), look) == []


def test_sections_that_the_protocol_and_the_glossary_refer_to_are_there() -> None:
    protocol = re.findall(r"\((\d+(?:\.\d+)+(?:[,;] \d+(?:\.\d+)+)*)\)", text_of(DOCS / "protocol.md"))
    rows = re.findall(r"^\|.*\| ([\d., ]+) \|$", text_of(DOCS / "glossary.md"), re.MULTILINE)
    cited = [number for group in (*protocol, *rows) for number in re.findall(r"[\d.]*\d", group)]
    assert len(cited) > 100
    assert [number for number in cited if number not in SECTIONS] == []


def test_headings_that_are_named_are_there() -> None:
    def look(file: Path, text: str) -> Iterator[str]:
        for name, heading in _HEADING.findall(text):
            page = page_named(name, file)
            if page is not None and not any(heading.lower() in have.lower() for have in headings(page)):
                yield f"{name}, {heading!r}"
        if file.suffix == ".md":
            for name, anchor in _ANCHOR.findall(text):
                page = file if not name else (file.parent / name).resolve()
                if page.suffix == ".md" and anchor not in [slug(have) for have in headings(page)]:
                    yield f"{name}#{anchor}"

    assert missing(everything(), look) == []


def test_files_that_pages_name_are_there() -> None:
    def look(_: Path, text: str) -> Iterator[str]:
        for path, test in _PATH.findall(text):
            place = TREE / path.rstrip("./")
            if not place.exists() and not list(TREE.glob(f"{path}*")):
                yield path
            elif test and f"def {test}(" not in text_of(place):
                yield f"{path}::{test}"

    assert missing(PAGES, look) == []


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module, or something that the module behind it names."""
    package, *parts = dotted.split(".")
    place = IMPORTS[package]
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if parts and (place / f"{parts[0]}.py").is_file():
        place = place / f"{parts.pop(0)}.py"
    elif parts:
        place /= "__init__.py"
    return not parts or (place.is_file() and all(re.search(rf"\b{part}\b", text_of(place)) for part in parts))


@pytest.mark.parametrize(
    ("files", "pattern"), [(PAGES, _MODULE), (list(sources()), _DOCSTRING_MODULE)], ids=["pages", "code"]
)
def test_modules_that_are_named_are_there(files: list[Path], pattern: re.Pattern[str]) -> None:
    def look(file: Path, text: str) -> Iterator[str]:
        for name in pattern.findall(text):
            if name.startswith("."):
                if not (file.parent / f"{name[1:].replace('.', '/')}.py").is_file():
                    yield name
            elif name.split(".")[0] in IMPORTS and name not in NOT_MODULES and not is_there(name):
                yield name

    assert missing(files, look) == []
