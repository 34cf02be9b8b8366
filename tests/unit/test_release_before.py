"""Which release a rolling upgrade begins with: the newest that the changelog names with its commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from inaproto.errors import Unsupported
from inaproto_hil.rigs.release import named_in, release_before

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHANGELOG = f"""# Changelog

## Unreleased

## 0.3.0 (2027-01-02, commit {COMMIT})

## 0.2.0 (2026-11-26, commit {"f" * 40})

## 0.1.0
"""


def test_the_newest_release_is_named_with_its_commit() -> None:
    assert named_in(CHANGELOG) == ("0.3.0", COMMIT)


@pytest.mark.parametrize("heading", ["## 0.1.0", "## 0.1.0 (2026-11-26)", f"## 0.1.0 (commit {COMMIT[:12]})"])
def test_a_changelog_without_a_commit_says_so(heading: str) -> None:
    with pytest.raises(Unsupported, match="names no release with its commit"):
        named_in(f"# Changelog\n\n{heading}\n")


def test_a_tree_without_that_commit_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(Unsupported, match="it is built from a checkout"):
        release_before(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    with pytest.raises(Unsupported, match=r"git -C .* archive failed: .*" + COMMIT):
        release_before(tmp_path)
