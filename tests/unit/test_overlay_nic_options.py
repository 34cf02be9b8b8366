"""How the processes of trees are told their NIC: what goes together, and what is refused at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from inaproto.daemon.settings.config import (
    HostSettings,
    OverlayNic,
    ServerSettings,
    load_host_settings,
    load_server_settings,
)
from inaproto.errors import ConfigError, Unsupported
from inaproto.parts import overlay_nic_of

PORTS = Path("/tmp/x/ports.sock")


def server(**given: str) -> ServerSettings:
    flags = {"name": "ps0", "models": "models.toml", "dir": "/tmp/x"} | given
    return load_server_settings(flags, None, {}).settings


def host(**given: str) -> HostSettings:
    flags = {"name": "h0", "ip": "10.0.0.1", "dir": "/tmp/x"} | given
    return load_host_settings(flags, None, {}).settings


def test_by_default_there_is_none() -> None:
    assert server().overlay_nic is None
    assert host(models="models.toml").overlay_nic is None


def test_what_is_said_of_it() -> None:
    found = server(nic="softnic", port="udp:127.0.0.11", traffic_class="104").overlay_nic
    assert found == OverlayNic("softnic", "udp:127.0.0.11", "", PORTS, 104)
    found = host(models="m", models_nic="softnic", models_ip="10.0.0.2").overlay_nic
    assert found == OverlayNic("softnic", "", "10.0.0.2", PORTS, 0, "models_")


def test_by_default_a_host_has_its_own_card_for_both() -> None:
    found = host(models="m", models_nic="verbs").overlay_nic
    assert found is not None
    assert found.ip == "10.0.0.1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"port": "udp:127.0.0.9"}, r"port \(flag --port\): needs nic; give --nic, too"),
        ({"ip": "10.0.0.9"}, "needs nic"),
        ({"nic": "softnic", "ip": "no"}, "must be an address such as 10.0.0.1 or fd00::1"),
        ({"nic": "softnic", "ip": "ff02::1"}, "must be the address of one host"),
    ],
    ids=str,
)
def test_a_server_is_told_what_is_missing(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        server(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"models_nic": "softnic"}, r"models_nic \(flag --models-nic\): needs models"),
        ({"models": "m", "models_ip": "10.0.0.9"}, "needs models_nic"),
        ({"models": "m", "models_port": "udp:127.0.0.9"}, "needs models_nic"),
    ],
    ids=str,
)
def test_a_host_is_told_what_is_missing(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        host(**given)


def test_a_variable_that_is_for_hosts_does_not_stop_a_server() -> None:
    flags = {"name": "ps0", "models": "models.toml", "dir": "/tmp/x"}
    assert load_server_settings(flags, None, {"INAPROTO_IP": "10.0.0.1"}).settings.overlay_nic is None


@pytest.mark.parametrize(
    ("nic", "port", "ip", "said"),
    [
        ("softnic", "", "", "ip: is missing; a softnic is a machine of its own"),
        ("softnic", "udp:10.0.0.9", "", "for loopback alone"),
        ("softnic", "udp:127.0.0.9", "10.0.0.9", "cannot be at udp"),
        ("softnic", "udp:127.0.0.9", "fd00::9", "ip: fd00::9 does not go with port udp:127.0.0.9"),
        ("verbs", "packet:eth9", "10.0.0.9", "has its own port"),
        ("verbs", "", "", "ip: is missing; nic verbs is found by its address"),
    ],
)
def test_a_nic_that_cannot_be_is_refused(nic: str, port: str, ip: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        overlay_nic_of(OverlayNic(nic, port, ip, PORTS, 0))


@pytest.mark.parametrize(("nic", "port"), [("frames", ""), ("softnic", "frames:x"), ("mlx9", "")])
def test_an_adapter_of_another_kind_is_refused(nic: str, port: str) -> None:
    with pytest.raises(Unsupported, match="adapter"):
        overlay_nic_of(OverlayNic(nic, port, "10.0.0.9", PORTS, 0))


async def test_a_card_that_is_not_there_is_refused_when_it_is_opened() -> None:
    open_nic = overlay_nic_of(OverlayNic("verbs", "", "192.0.2.7", PORTS, 0))
    with pytest.raises(Unsupported):
        await open_nic()
