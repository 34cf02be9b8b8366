"""Commands to be pasted look where the one that prints them has looked."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from inaproto.pasted import pasted


def test_what_has_been_given_is_carried_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = pasted(
        "job watch", "train1", dir=Path("my ina"), controller=("http://127.0.0.1:9", "http://[::1]:9")
    )
    assert shlex.split(words) == [
        *("inaproto", "job", "watch", "--dir", str(tmp_path / "my ina")),
        *("--controller", "http://127.0.0.1:9", "--controller", "http://[::1]:9", "train1"),
    ]


def test_what_has_not_been_given_is_not_said() -> None:
    assert pasted("status", dir=None, socket=(), tls="", json=False) == "inaproto status"
    assert pasted("job list", all=True, host_dir=Path("/x")) == "inaproto job list --all --host-dir /x"
