"""requirements.lock pins what pyproject.toml asks for, and nothing in it points to a place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TREE = Path(__file__).resolve().parents[2]
LOCK = (TREE / "requirements.lock").read_text()


def locked() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in re.findall(r"^\S.*?==.*?(?= \\$|$)", LOCK, flags=re.MULTILINE):
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    wanted = [
        Requirement(text) for text in project["project"]["dependencies"] + groups["dev"] + groups["build"]
    ]
    pins = locked()
    assert len(wanted) > 15
    for requirement in wanted:
        for pin in pins.get(canonicalize_name(requirement.name), []):
            (version,) = (specifier.version for specifier in pin.specifier)
            assert requirement.specifier.contains(version), f"{pin} against {requirement}: run `make lock`"
    missing = [str(requirement) for requirement in wanted if canonicalize_name(requirement.name) not in pins]
    assert not missing, f"not in requirements.lock, run `make lock`: {missing}"


def test_every_pin_has_hashes() -> None:
    blocks = re.split(r"^(?=\S+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) > 40
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_no_pin_names_a_place() -> None:
    assert re.findall(r"https?:|file:|git\+|--(?:extra-)?index|--find-links|-f |^-e | @ ", LOCK) == []
