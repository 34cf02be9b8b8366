"""What is started for each host of a job that a controller has placed, and how its launchers are told of."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from inaproto.errors import ConfigError
from inaproto.launch.placed import Part, parts_of, run_parts
from inaproto.launch.supervision import Say, Supervision

HERE = {"h0": Path("/run/a"), "h1": Path("/run/a")}


def parts(**changed: Any) -> list[Part]:
    asked: dict[str, Any] = {
        "job": "train",
        "hosts": ["h1", "h0"],
        "ranks_per_host": 2,
        "words": ["python", "train.py", "--name", "two words"],
        "here": HERE,
        "on": "",
        "there": None,
        "launcher": ["/opt/python", "-m", "inaproto", "run"],
        "work_dir": Path("/home/my work"),
    }
    return parts_of(**(asked | changed))


def value(part: Part, option: str) -> str:
    return part.command[part.command.index(option) + 1]


def test_each_host_of_this_machine_gets_its_ranks_by_its_own_daemon() -> None:
    found = parts()
    assert [part.host for part in found] == ["h1", "h0"], "in the order of ranks"
    for index, part in enumerate(found):
        assert part.command[:4] == ("/opt/python", "-m", "inaproto", "run")
        assert value(part, "--hosts") == "h1,h0"
        assert value(part, "--host") == part.host
        assert value(part, "--host-index") == str(index)
        assert value(part, "-n") == "2"
        assert value(part, "--dir") == "/run/a"
        assert value(part, "--master-addr") == "127.0.0.1", "names of host daemons are no addresses here"
        assert {"--by-input", "--label"} <= set(part.command)
        assert part.command[-5:] == ("--", "python", "train.py", "--name", "two words")
    assert ["--quiet" in part.command for part in found] == [False, True], "all would say the same"


def test_another_machine_gets_one_line_of_shell_by_the_command_that_reaches_it() -> None:
    here, away = parts(
        hosts=["h0", "far"], on="srun -w {host} sh -c", there=Path("/run/b"), options=["--path", "chain"]
    )
    assert here.command[0] == "/opt/python"
    assert value(here, "--dir") == "/run/a"
    assert "--master-addr" not in here.command, "torch's other ranks must find it"
    assert away.command[:5] == ("srun", "-w", "far", "sh", "-c")
    (line,) = away.command[5:]
    words = shlex.split(line)
    assert words[:4] == ["cd", "/home/my work", "&&", "exec"]
    assert words[4:8] == ["/opt/python", "-m", "inaproto", "run"]
    assert words[-5:] == ["--", "python", "train.py", "--name", "two words"]
    for option, text in (("--dir", "/run/b"), ("--host", "far"), ("--host-index", "1"), ("--path", "chain")):
        assert words[words.index(option) + 1] == text


def test_no_key_is_on_a_command_line() -> None:
    assert all("key" not in word.lower() for part in parts() for word in part.command)


def test_a_single_rank_is_not_labelled() -> None:
    (part,) = parts(hosts=["h0"], ranks_per_host=1)
    assert "--label" not in part.command


def test_hosts_that_cannot_be_reached_are_named() -> None:
    with pytest.raises(ConfigError, match=r"of these far does not run here \(host daemons here: h0, h1\)"):
        parts(hosts=["h0", "far"])
    with pytest.raises(ConfigError, match=r"does not say \{host\}; for example --via 'ssh \{host\}'"):
        parts(hosts=["h0", "far"], on="ssh far")


def test_a_command_that_is_not_there_is_named_with_its_option() -> None:
    with pytest.raises(ConfigError, match="--via: nosuchprogram: there is no such program"):
        run_parts([Part("far", ("nosuchprogram", "far"))], "k", {"PATH": "/nonexistent"}, lambda: "")


def test_launchers_are_called_by_their_hosts() -> None:
    names = {0: "the launcher on h0", 1: "the launcher on h1", 2: "the launcher on h2"}
    launchers = Supervision(names, 10, names=names)
    first, *_ = launchers.exited(1, 7, 0.0)
    assert first == Say(
        "the launcher on h1 ended with exit status 7; ending the launcher on h0, the launcher on h2"
    )
    assert launchers.status == 7
