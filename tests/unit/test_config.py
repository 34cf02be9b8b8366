"""Configuration: file, environment and flags, and words that name field, source, value and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from inaproto.client.run_directory import default_run_directory, run_directory
from inaproto.daemon.net.control_address import Endpoint
from inaproto.daemon.settings.config import load_host_settings, load_settings, load_switch_settings
from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto_controller.service.settings import ControllerSettings

HOST: Mapping[str, object] = {"name": "h0", "ip": "10.0.0.1"}


def write(directory: Path, text: str) -> Path:
    path = directory / "ina.toml"
    path.write_text(text)
    return path


def refused_switch(
    flags: Mapping[str, object] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load_switch_settings(flags or {}, file, environment or {})
    return str(caught.value)


def refused_host(flags: Mapping[str, object], environment: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_host_settings(flags, None, environment or {})
    return str(caught.value)


def test_defaults_are_those_of_the_documentation() -> None:
    host = load_host_settings(HOST, None, {}).settings
    assert (host.mtu, host.window_messages, host.message_packets) == (1024, 8, 170)
    assert (host.transport_timeout, host.retry_count, host.stall_ms) == (14, 7, 1000)
    assert host.operation_timeout_ms == 600_000
    assert host.mac_bytes == b"\x02\x00\x0a\x00\x00\x01"
    assert host.ip_bytes == b"\x0a\x00\x00\x01"
    assert host.listen_path == host.dir / "h0.sock"
    assert load_switch_settings({}, None, {}).settings.weather.clear


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[switch]\nrings_max = 1\nranks_max = 2\nports_max = 3\n[host]\nmtu = 256\n")
    environment = {"INAPROTO_RANKS_MAX": "20", "INAPROTO_PORTS_MAX": "30"}
    loaded = load_switch_settings({"ports_max": "40"}, file, environment)
    assert (loaded.settings.rings_max, loaded.settings.ranks_max, loaded.settings.ports_max) == (1, 20, 40)
    assert loaded.sources["rings_max"] == f"{file}: switch.rings_max"
    assert loaded.sources["ranks_max"] == "environment variable INAPROTO_RANKS_MAX"
    assert loaded.sources["ports_max"] == "flag --ports-max"
    assert loaded.sources["seed"] == "default"


def test_numbers_may_be_text(tmp_path: Path) -> None:
    assert load_host_settings({**HOST, "mtu": "512"}, None, {}).settings.mtu == 512
    assert load_host_settings(HOST, None, {"INAPROTO_MTU": "4096"}).settings.mtu == 4096
    assert load_switch_settings({}, None, {"INAPROTO_SEED": "7"}).settings.seed == 7


def test_the_time_limit_of_operations_comes_from_file_environment_or_flag(tmp_path: Path) -> None:
    file = write(tmp_path, "[host]\noperation_timeout_ms = 5\n")
    environment = {"INAPROTO_OPERATION_TIMEOUT_MS": "0"}
    assert load_host_settings(HOST, file, {}).settings.operation_timeout_ms == 5
    assert load_host_settings(HOST, file, environment).settings.operation_timeout_ms == 0
    flags = {**HOST, "operation_timeout_ms": "7"}
    assert load_host_settings(flags, file, environment).settings.operation_timeout_ms == 7


def test_weather_is_text_everywhere(tmp_path: Path) -> None:
    weather = Weather(drop=0.01, reorder=0.02)
    text = "drop=0.01,reorder=2%"
    file = write(tmp_path, f'[switch]\nweather = "{text}"\n')
    assert load_switch_settings({}, file, {}).settings.weather == weather
    assert load_switch_settings({"weather": text}, None, {}).settings.weather == weather
    assert load_switch_settings({}, None, {"INAPROTO_WEATHER": text}).settings.weather == weather


def test_shown_configuration_can_be_read_back(tmp_path: Path) -> None:
    flags = {**HOST, "dir": str(tmp_path / 'quo"ted'), "mac": "02-AA-00-00-00-07", "stall_ms": "50"}
    shown = load_host_settings(flags, None, {}).show()
    assert "# flag --stall-ms" in shown
    again = load_host_settings({}, write(tmp_path, shown), {})
    assert again.settings == load_host_settings(flags, None, {}).settings
    switch = load_switch_settings({"weather": "drop=0.5"}, None, {})
    assert load_switch_settings({}, write(tmp_path, switch.show()), {}).settings == switch.settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"mtu": "1000"},
            "mtu (flag --mtu): 1000 is not allowed: it should be 'auto', 256, 512, 1024, 2048 or 4096",
        ),
        (
            {"window_messages": "3"},
            "window_messages (flag --window-messages): '3' is not allowed: must be a power",
        ),
        ({"window_messages": 0}, "greater than or equal to 1"),
        (
            {"ip": "10.0.0"},
            "ip (flag --ip): '10.0.0' is not allowed: must be an address such as 10.0.0.1 or fd00::1",
        ),
        ({"ip": "224.0.0.1"}, "the address of one host"),
        ({"mac": "01:00:00:00:00:01"}, "its first byte is even"),
        ({"mac": "02:00"}, "six bytes such as"),
        ({"name": "a/b"}, "letters, digits"),
        ({"stall_ms": "soon"}, "stall_ms (flag --stall-ms): 'soon' is not allowed"),
        ({"operation_timeout_ms": "-1"}, "operation_timeout_ms (flag --operation-timeout-ms): '-1' is not"),
        ({"log_level": "loud"}, "'debug', 'info', 'warning' or 'error'"),
        ({"retry_count": "8"}, "less than or equal to 7"),
    ],
)
def test_bad_values_are_named(flags: dict[str, object], words: str) -> None:
    assert words in refused_host({**HOST, **flags})


def test_missing_values_say_the_three_ways_to_give_them() -> None:
    ways = "is missing; give --{0}, INAPROTO_{1} or the field {0} in the configuration file"
    assert refused_host({}) == f"name: {ways.format('name', 'NAME')}"
    text = refused_host({"name": "h0"})
    assert text == f"ip: {ways.format('ip', 'IP')} (a NIC on InfiniBand has a gid instead)"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"gid": "fe80::1"}, "gid (flag --gid): the softnic is on Ethernet; give --nic verbs, or --ip"),
        ({"gid": "fe80::1", "nic": "verbs", "ip": "10.0.0.1"}, "a NIC on InfiniBand has no ip (flag --ip)"),
        ({"gid": "fe80::1", "nic": "verbs", "mac": "02:00:00:00:00:01"}, "has no mac (flag --mac)"),
        ({"gid": "mlx5_0", "nic": "verbs"}, "must be a GID such as fe80::"),
        ({"gid": "ff02::1", "nic": "verbs"}, "must be the GID of one port"),
        ({"gid": "::ffff:10.0.0.1", "nic": "verbs"}, "must be the GID of one port"),
        ({"gid": "fe80::", "nic": "verbs"}, "must be the GID of one port"),
        ({"ip": "10.0.0.1", "router_lid": "7"}, "router_lid (flag --router-lid): needs gid; give --gid, too"),
        ({"gid": "fe80::1", "nic": "verbs", "router_lid": "49152"}, "less than 49152"),
    ],
)
def test_a_host_on_infiniband_has_a_gid_alone(flags: dict[str, object], words: str) -> None:
    assert words in refused_host({"name": "h0", **flags})


def test_the_addresses_of_a_host_on_infiniband_are_zeros_but_for_its_gid() -> None:
    flags = {"name": "h0", "nic": "verbs", "gid": "FE80:0:0:0:248A:0703:00B4:1C2A", "router_lid": "9"}
    settings = load_host_settings(flags, None, {}).settings
    assert settings.gid == "fe80::248a:703:b4:1c2a"
    assert settings.gid_bytes == bytes.fromhex("fe80000000000000248a070300b41c2a")
    assert (settings.mac_bytes, settings.ip_bytes, settings.router_lid) == (bytes(6), bytes(4), 9)
    assert load_host_settings(HOST, None, {}).settings.gid_bytes is None


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (
            "[switch]\nrings_maxx = 3\n",
            "rings_maxx ({file}: switch.rings_maxx): no such field, did you mean 'rings_max'?",
        ),
        ("[swich]\n", "unknown table or field 'swich', did you mean 'switch'?"),
        ("seed = 1\n", "fields belong into the table [switch], [host], [server] or [controller]"),
        ("switch = 1\n", "'switch' must be a table"),
        ("[switch\n", "is not TOML: "),
        ("[switch]\nseed = 1\nseed = 2\n", "is not TOML: "),
        ('[switch]\nweather = "drop=2"\n', "weather ({file}: switch.weather): 'drop=2' is not allowed: "),
        ("[switch]\nweather = 3\n", "must be text such as"),
        ('[switch]\nseed = "x"\n', "seed ({file}: switch.seed): 'x' is not allowed: "),
        ("[switch]\nseed = true\n", "seed ({file}: switch.seed): True is not allowed: "),
    ],
)
def test_bad_files_are_named(tmp_path: Path, toml: str, words: str) -> None:
    file = write(tmp_path, toml)
    assert words.format(file=file) in refused_switch(file=file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refused_switch(file=tmp_path / "missing.toml")
    assert "cannot be read: Is a directory" in refused_switch(file=tmp_path)
    binary = tmp_path / "b"
    binary.write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text (byte 0)" in refused_switch(file=binary)
    binary.write_bytes(b"#" * (1 << 20) + b"#")
    assert "longer than" in refused_switch(file=binary)


def test_all_faults_are_told_at_once() -> None:
    text = refused_switch({"mtu_max": "7", "seed": "x"}, environment={"INAPROTO_WEATHER": "drop"})
    assert [line.split(":")[0] for line in text.splitlines()] == [
        "mtu_max (flag --mtu-max)",
        "weather (environment variable INAPROTO_WEATHER)",
        "seed (flag --seed)",
    ]


def test_socket_paths_must_fit() -> None:
    long = "/tmp/" + "x" * 110
    assert "UNIX sockets allow 107; choose a shorter directory" in refused_switch({"dir": long})
    assert "the switch's socket" in refused_host({**HOST, "dir": long})
    assert "listen (flag --listen)" in refused_host({**HOST, "listen": long})


def test_variables_that_look_like_ours_are_pointed_at() -> None:
    loaded = load_switch_settings({}, None, {"INAPROTO_MTU_MAXX": "1", "INAPROTO_OF_A_SCRIPT": "1"})
    assert loaded.warnings == (
        "environment variable INAPROTO_MTU_MAXX is not known, did you mean INAPROTO_MTU_MAX?",
    )


def test_default_directory(tmp_path: Path) -> None:
    assert default_run_directory({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "inaproto"
    for environment in ({}, {"XDG_RUNTIME_DIR": str(tmp_path / "missing")}):
        assert str(default_run_directory(environment)).startswith("/tmp/inaproto-")
    settings = load_switch_settings({}, None, {"XDG_RUNTIME_DIR": str(tmp_path)}).settings
    assert settings.control_path == tmp_path / "inaproto" / "control.sock"


def test_daemons_and_their_controllers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the switch's name in the cluster file"):
        load_switch_settings({"controller": ("/a.sock",)}, None, {})
    pair = {"INAPROTO_CONTROLLER": "/a.sock:/b.sock"}
    loaded = load_switch_settings({"name": "leaf"}, None, pair)
    assert loaded.settings.controller == (Path("/a.sock"), Path("/b.sock"))
    (tmp_path / "shown.toml").write_text(loaded.show())
    assert load_switch_settings({}, tmp_path / "shown.toml", {}).settings == loaded.settings
    assert load_host_settings({"name": "h0", "ip": "10.0.0.1"}, None, {}).settings.controller == ()


def test_controllers_of_other_machines(tmp_path: Path) -> None:
    far = {"INAPROTO_CONTROLLER": "tls://one@10.0.0.100:7421, tls://[::1]:7421,/c.sock"}
    loaded = load_switch_settings({"name": "leaf"}, None, far)
    expected = (Endpoint("10.0.0.100", 7421, "one"), Endpoint("::1", 7421), Path("/c.sock"))
    assert loaded.settings.controller == expected
    (tmp_path / "shown.toml").write_text(loaded.show())
    assert load_switch_settings({}, tmp_path / "shown.toml", {}).settings == loaded.settings


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("tls://one@10.0.0.100", "an address and a port"),
        ("tls://two words@10.0.0.100:1", "the name of the controller that is there"),
        ("/run/controller.sock", "hosts and switches reach a controller at /run/controller-agents.sock"),
        ("/usr", "hosts and switches reach a controller at /usr/controller-agents.sock"),
        ("http://10.0.0.100:1", "must be tls://NAME@ADDRESS:PORT"),
        ("", "must be the path of a socket, or tls://"),
    ],
)
def test_controllers_that_cannot_be(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"controller.0 .flag --controller.: .*{said}"):
        load_switch_settings({"name": "leaf", "controller": (value,)}, None, {})


def test_examples_in_deploy_are_valid() -> None:
    deploy = Path(__file__).parents[2] / "deploy"
    controller = load_settings(ControllerSettings, {}, deploy / "controller.toml", {}).settings
    assert controller.store == "/var/lib/inaproto/controller.db"
    switch = load_switch_settings({}, deploy / "switch.toml", {}).settings
    host = load_host_settings({}, deploy / "host.toml", {}).settings
    assert switch.control_path == host.control_path == Path("/run/inaproto/control.sock")
    assert host.listen_path == Path("/run/inaproto/h0.sock")


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("control", "switch"),
        ("ports", "switch"),
        ("controller", "controller"),
        ("controller-agents", "controller"),
    ],
)
def test_a_host_cannot_take_the_name_of_another_s_socket(name: str, owner: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"name \(.*\): .*{name}\.sock is the {owner}'s own socket"):
        load_host_settings({"name": name, "ip": "10.0.0.1", "dir": tmp_path}, None, {})


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    environment = {"INAPROTO_DIR": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    loaded = load_host_settings(HOST, None, environment)
    assert loaded.settings.dir == run_directory(environment) == tmp_path / "inaproto"
    named = {**environment, "INAPROTO_DIR": "/run/elsewhere"}
    assert (
        load_host_settings(HOST, None, named).settings.dir == run_directory(named) == Path("/run/elsewhere")
    )


@pytest.mark.parametrize("value", ['"a\\u0000b"', '["packet:eth1", "a\\u0000b"]'])
def test_no_field_of_a_file_has_a_byte_that_ends_names(value: str, tmp_path: Path) -> None:
    for field in ("fabric", "port", "dir"):
        file = write(tmp_path, f"[switch]\nname = 's'\n{field} = {value}\n")
        said = refused_switch(file=file)
        assert said == f"configuration file {file}: switch.{field}: must not contain the character NUL"


def test_a_certificate_that_a_switch_would_not_use_is_refused() -> None:
    flags = {"tls": "/etc/inaproto/tls"}
    assert "tls (flag --tls): nobody speaks with it by TLS; give --control-listen" in refused_switch(flags)
    for used in (
        {"control_listen": "127.0.0.1:0"},
        {"name": "s", "controller": ("tls://controller@10.0.0.1:7000",)},
    ):
        assert load_switch_settings({**flags, **used}, None, {}).settings.tls is not None
    environment = {"INAPROTO_TLS": "/etc/inaproto/tls"}  # which hosts read, too
    assert load_switch_settings({}, None, environment).settings.tls is not None


def test_links_come_from_file_environment_or_flags(tmp_path: Path) -> None:
    file = write(tmp_path, '[switch]\nport = ["packet:eth1", "tap:tap0"]\n')
    loaded = load_switch_settings({}, file, {})
    assert loaded.settings.port == ("packet:eth1", "tap:tap0")
    again = load_switch_settings({}, write(tmp_path, loaded.show()), {})
    assert again.settings == loaded.settings
    environment = {"INAPROTO_PORT": "packet:eth3, packet:eth4"}
    assert load_switch_settings({}, file, environment).settings.port == ("packet:eth3", "packet:eth4")
    flags = {"port": ("packet:eth5",)}
    assert load_switch_settings(flags, file, environment).settings.port == ("packet:eth5",)
    assert load_switch_settings({}, None, {}).settings.port == ()
    assert load_host_settings({**HOST, "port": "packet:eth0"}, None, {}).settings.port == "packet:eth0"


@pytest.mark.parametrize(
    "link", ["eth1", "packet:", "packet:a b", "packet:eth/1", "Packet:eth1", "packet:" + 16 * "e"]
)
def test_what_names_no_link_is_refused(link: str) -> None:
    for told in (refused_switch({"port": (link,)}), refused_host({**HOST, "port": link})):
        assert told.startswith("port")
        assert "such as packet:eth1" in told


def test_an_interface_is_one_port() -> None:
    assert "must not name eth1 twice" in refused_switch({"port": ("packet:eth1", "tap:eth1")})


def test_messages_with_an_mtu_that_is_found_have_packets_for_the_smallest() -> None:
    """On a path of 256 bytes they have four times as many, and never more than a message can have."""
    load_host_settings({**HOST, "mtu": "auto", "message_packets": 16383}, None, {})
    load_host_settings({**HOST, "message_packets": 65535}, None, {})
    refused = refused_host({**HOST, "mtu": "auto", "message_packets": 16384})
    assert refused.startswith("message_packets (")
    assert "at most 16383 with mtu = auto" in refused
