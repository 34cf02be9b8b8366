"""Where ranks of a host meet (docs/protocol.md 11, 6): the choice, and the directories that a rank names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inaproto.client import meeting_places
from inaproto.core.host.meeting_place import MeetingPlace, common_place


def test_the_first_directory_of_the_lowest_rank_that_all_name_is_taken_whatever_its_path() -> None:
    named = {2: ["0:7 /b", "0:5 /x"], 0: ["0:4 /tmp", "0:5 /tmp/5", "0:7 /c"], 1: ["0:7 /a", "0:5 /y"]}
    assert common_place(named, "n") == MeetingPlace("0:5", "n")


def test_ranks_of_older_libraries_meet_as_they_did() -> None:
    assert common_place({0: (), 1: ()}, "n") == MeetingPlace()


def test_where_there_is_none_the_reason_names_ranks_and_directories() -> None:
    found = common_place({0: ["0:4 /tmp"], 1: ["0:4 /tmp"], 2: ["1:4 /tmp (user 1)", "1:9 /b\x1b"]}, "n")
    assert (found.place, found.name) == ("", "")
    assert "ranks 0 and 2" in found.why_not
    assert "/tmp (user 1), /b\\x1b" in found.why_not
    assert "rank 1 names no directory" in common_place({0: ["0:4 /tmp"], 1: ()}, "n").why_not


def test_three_of_which_each_two_have_one_do_not_meet() -> None:
    found = common_place({0: ["a", "b"], 1: ["b", "c"], 2: ["c", "a"]}, "n")
    assert found.why_not


def test_a_directory_has_one_name_by_whichever_path(
    monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    real = runtime_dir / "real"
    real.mkdir()
    (runtime_dir / "link").symlink_to(real)
    monkeypatch.setattr("tempfile.tempdir", str(runtime_dir / "link"))
    by_link = meeting_places.meeting_places(real / "h0.sock")
    monkeypatch.setattr("tempfile.tempdir", str(real))
    by_name = meeting_places.meeting_places(Path("/nowhere/h0.sock"))
    assert {name.split()[0] for name in by_link} == {name.split()[0] for name in by_name}
    assert next(iter(by_link.values())) == runtime_dir / "link"
    assert not list(real.iterdir()), "nothing is made before they meet"


def test_what_cannot_be_used_is_not_named(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> None:
    """A path that is too long for a socket, one that is away, one where nothing can be written."""
    deep = runtime_dir / ("x" * 90)
    deep.mkdir()
    locked = runtime_dir / "locked"
    locked.mkdir(mode=0o500)
    looked = [deep, runtime_dir / "away", locked, runtime_dir]
    monkeypatch.setattr(meeting_places, "directories", lambda _: looked)
    found = list(meeting_places.meeting_places(Path("/nowhere")).values())
    assert found == ([locked, runtime_dir] if os.geteuid() == 0 else [runtime_dir])
