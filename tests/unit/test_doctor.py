"""Checks of ``inaproto doctor``: each with what is right, and with what is planted wrong."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from inaproto.doctor import daemons, ethernet, firewall, limits, lossless, reach, report, software
from inaproto.doctor import site as sites
from inaproto.doctor.checklist import Answer, all_checks, examine, has_failed
from inaproto.doctor.findings import Check, Finding, Outcome, ok, untestable
from inaproto.doctor.report import show
from inaproto.doctor.site import Asked, Ran, Site, addresses_in, run_program
from inaproto.errors import Unsupported

OK, WARNING, FAILED, UNTESTABLE = Outcome.OK, Outcome.WARNING, Outcome.FAILED, Outcome.UNTESTABLE


def outcomes(findings: Iterable[Finding]) -> list[Outcome]:
    return [found.outcome for found in findings]


def plant(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def address(name: str, ip: str, length: int = 24) -> dict[str, Any]:
    info = [{"family": "inet", "local": ip, "prefixlen": length}]
    return {"ifname": name, "flags": ["UP"], "addr_info": info}


def programs(outputs: Mapping[str, str]) -> Any:
    """Runs nothing: the output of each program by the beginning of its command line."""

    def run(argv: Sequence[str]) -> Ran | None:
        line = " ".join(argv)
        found = [text for begin, text in outputs.items() if line.startswith(begin)]
        return Ran(0, found[0]) if found else None

    return run


# --- what people read


def test_what_cannot_be_tested_is_said_once_for_all_checks_that_it_holds_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check(name: str, *findings: Finding) -> Answer:
        return Answer(Check(name, "for a reason", lambda _: findings), findings)

    lacking, other = untestable("no device is here"), untestable("no address", "give --ip")
    show(
        [
            check("gid", lacking),
            check("mtu", other),
            check("memory", ok("9 MiB free")),
            check("link", lacking),
        ]
    )
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("no device is here") == 1
    assert "not testable here: gid, link: no device is here" in told
    assert "not testable here: mtu: no address -> give --ip" in told
    assert told.index("9 MiB free") < told.index("not testable here"), "what was found is first"
    assert told.endswith("1 ok, 0 warning, 0 failed, 3 not testable here")


# --- software, limits


def test_kernels_that_are_not_compiled_are_a_warning_with_the_way_to_have_them() -> None:
    (finding,) = software.look_at_kernels("compiled (pclmul, avx2)")
    assert finding.found == "kernels: compiled (pclmul, avx2)"
    (finding,) = software.look_at_kernels("numpy: not built")
    assert "make venv" in finding.mend


@pytest.mark.parametrize(
    ("python", "bits", "changed", "expected"),
    [
        ("3.11.7", 64, {}, [OK]),
        ("3.10.2", 64, {}, [FAILED, OK]),
        ("3.12.0", 32, {}, [FAILED, OK]),
        ("3.13.0rc1", 64, {"numpy": "1.26.4"}, [FAILED, OK]),
        ("3.11.7", 64, {"numpy": ""}, [FAILED, OK]),
        ("3.11.7", 64, {"isal": ""}, [WARNING, OK]),
    ],
)
def test_versions(python: str, bits: int, changed: dict[str, str], expected: list[Outcome]) -> None:
    installed = {"numpy": "2.4.6", "trio": "0.35.0", "msgpack": "1.2.4", "isal": "1.9.1", "inaproto": "1"}
    found = list(software.look_at_versions(python, bits, installed | changed))
    assert outcomes(found) == expected


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 1048576              files
Max locked memory         unlimited            unlimited            bytes"""


def test_limits_are_those_of_the_daemon(tmp_path: Path) -> None:
    plant(tmp_path, {"/proc/77/limits": LIMITS})
    site = Site(root=tmp_path, hosts=[{"role": "host", "name": "h0", "pid": 77}])
    [found] = limits.DESCRIPTORS.look(site)
    assert (found.outcome, found.found) == (WARNING, "host h0 may open 1024 descriptors")
    assert "LimitNOFILE" in found.mend
    assert limits.limit_in(LIMITS, "Max locked memory") == limits.UNLIMITED
    with pytest.raises(Unsupported):
        limits.limit_in("no table", "Max open files")


def test_memory_is_what_the_cgroup_leaves(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "/proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable:    8388608 kB",
            "/sys/fs/cgroup/memory.max": str(1 << 30),
            "/sys/fs/cgroup/memory.current": str(1 << 29),
        },
    )
    [found] = limits.MEMORY.look(Site(Asked(tensor_bytes=100 << 20), tmp_path))
    assert (found.outcome, found.found) == (OK, "512 MiB free in this cgroup, a rank needs 300 MiB")
    [found] = limits.MEMORY.look(Site(Asked(tensor_bytes=200 << 20), tmp_path))
    assert found.outcome is FAILED
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    [found] = limits.MEMORY.look(Site(Asked(tensor_bytes=200 << 20), tmp_path))
    assert (found.outcome, found.found) == (OK, "8192 MiB free, a rank needs 600 MiB")
    [found] = limits.MEMORY.look(Site(root=tmp_path / "nothing"))
    assert found.outcome is UNTESTABLE


def test_socket_buffers(tmp_path: Path) -> None:
    plant(tmp_path, {"/proc/sys/net/core/rmem_max": "212992", "/proc/sys/net/core/wmem_max": "4194304"})
    site = Site(root=tmp_path)
    small, large = limits.SOCKET_BUFFERS.look(site)
    assert (small.outcome, large.outcome) == (WARNING, OK)
    assert small.mend.startswith("sysctl -w net.core.rmem_max=524288")
    site.switches = [{"role": "switch", "ports": [{"name": "packet:eth1"}]}]
    assert outcomes(limits.SOCKET_BUFFERS.look(site)) == [WARNING, WARNING]


def ptrace(root: Path) -> Finding:
    [found] = limits.PTRACE.look(Site(root=root))
    return found


def test_yama_keeps_ranks_from_reading_each_other(tmp_path: Path) -> None:
    assert ptrace(tmp_path).outcome is UNTESTABLE
    plant(tmp_path, {"/proc/sys/kernel/ostype": "Linux"})
    assert ptrace(tmp_path) == Finding(OK, "this kernel has no Yama")
    for scope, outcome, mend in (
        ("0", OK, ""),
        ("1", WARNING, "sysctl -w kernel.yama.ptrace_scope=0"),
        ("2", WARNING, "sysctl -w kernel.yama.ptrace_scope=0"),
        ("3", WARNING, "it stays so until the next boot"),
    ):
        plant(tmp_path, {limits.YAMA: scope})
        found = ptrace(tmp_path)
        assert found.outcome is outcome
        assert mend in found.mend
        assert f"kernel.yama.ptrace_scope is {scope}" in found.found


# --- the interface


def ethernet_site(tmp_path: Path, files: Mapping[str, str], outputs: Mapping[str, str] | None = None) -> Site:
    plant(tmp_path, {f"/sys/class/net/eth1/{name}": text for name, text in files.items()})
    known = {"ip -json -4 address": json.dumps([address("eth1", "10.0.0.1")])} | dict(outputs or {})
    return Site(Asked(ip="10.0.0.1", mtu=4096), tmp_path, programs(known))


@pytest.mark.parametrize(
    ("files", "outcome", "words"),
    [
        ({"operstate": "up", "speed": "100000"}, OK, "eth1 is up, 100000 Mbit/s"),
        ({"operstate": "unknown", "speed": "-1"}, OK, "speed not told"),
        ({"operstate": "down"}, FAILED, "eth1 is down"),
        ({"operstate": "lowerlayerdown"}, FAILED, "lowerlayerdown"),
        ({}, FAILED, "there is no interface eth1"),
    ],
)
def test_link(tmp_path: Path, files: dict[str, str], outcome: Outcome, words: str) -> None:
    [found] = ethernet.LINK.look(ethernet_site(tmp_path, files))
    assert found.outcome is outcome
    assert words in found.found


@pytest.mark.parametrize(("mtu", "path"), [(1500, 1024), (4200, 4096), (4191, 2048), (9000, 4096), (300, 0)])
def test_path_mtu_of_an_interface(mtu: int, path: int) -> None:
    assert ethernet.path_mtu_of(mtu) == path


def test_a_small_mtu_is_mended_by_4200(tmp_path: Path) -> None:
    [found] = ethernet.MTU.look(ethernet_site(tmp_path, {"mtu": "1500"}))
    assert found.outcome is FAILED
    assert "ip link set eth1 mtu 4200" in found.mend
    [found] = ethernet.MTU.look(ethernet_site(tmp_path, {"mtu": "4200"}))
    assert found.outcome is OK


def test_where_no_interface_has_the_address(tmp_path: Path) -> None:
    site = Site(Asked(ip="10.9.9.9"), tmp_path, programs({"ip": "[]"}))
    [found] = ethernet.LINK.look(site)
    assert found.outcome is UNTESTABLE
    assert "no interface of this machine has 10.9.9.9" in found.found
    [found] = ethernet.LINK.look(Site(Asked(ip="10.9.9.9"), tmp_path, programs({})))
    assert "--interface" in found.found
    assert addresses_in("no json") == []
    assert addresses_in('[{"ifname": "lo", "flags": ["LOOPBACK"], "addr_info": [{"family": "inet"}]}]') == []


PAUSE = "Pause parameters for eth1:\nAutonegotiate:\toff\nRX:\t\t{rx}\nTX:\t\t{tx}\n"
FEATURES = "generic-receive-offload: {gro}\nlarge-receive-offload: {lro}\nrx-gro-hw: off [fixed]\n"


def test_pause(tmp_path: Path) -> None:
    for rx, tx, outcome in (("off", "off", OK), ("on", "off", WARNING), ("on", "on", WARNING)):
        site = ethernet_site(tmp_path, {}, {"ethtool -a eth1": PAUSE.format(rx=rx, tx=tx)})
        assert outcomes(ethernet.PAUSE.look(site)) == [outcome]
    assert outcomes(ethernet.PAUSE.look(ethernet_site(tmp_path, {}))) == [UNTESTABLE]


@pytest.mark.parametrize(
    ("gro", "lro", "outcome"), [("off", "off", OK), ("on", "off", OK), ("on", "on", FAILED)]
)
def test_offloads_of_packet_ports(tmp_path: Path, gro: str, lro: str, outcome: Outcome) -> None:
    site = ethernet_site(tmp_path, {}, {"ethtool -k eth1": FEATURES.format(gro=gro, lro=lro)})
    assert outcomes(ethernet.OFFLOADS.look(site)) == [UNTESTABLE]
    site.switches = [{"role": "switch", "ports": [{"name": "packet:eth1"}, {"name": "port-3"}]}]
    assert outcomes(ethernet.OFFLOADS.look(site)) == [outcome]


# --- the lossless class


def test_lossless_priorities() -> None:
    dcb = "pfc-cap 8 macsec-bypass on delay 0\nprio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:on\n"
    assert lossless.lossless_in_dcb(dcb) == [3, 7]
    vendor = "\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   1   0   0   0   0\n"
    assert lossless.lossless_in_mlnx_qos(vendor) == [3]
    assert lossless.lossless_in_dcb("") == lossless.lossless_in_mlnx_qos("") == []
    assert lossless.look_at_priorities("eth1", [3]).outcome is OK
    assert lossless.look_at_priorities("eth1", []).outcome is WARNING
    assert lossless.look_at_priorities("eth1", list(range(8))).outcome is WARNING


def test_pfc_is_asked_of_the_vendor_s_tool_where_dcb_fails(tmp_path: Path) -> None:
    site = ethernet_site(tmp_path, {}, {"mlnx_qos -i eth1": "\tenabled     0   0   0   1   0   0   0   0\n"})
    assert outcomes(lossless.PFC.look(site)) == [OK]
    assert outcomes(lossless.PFC.look(ethernet_site(tmp_path, {}))) == [UNTESTABLE]


def test_congestion_control_needs_both_points(tmp_path: Path) -> None:
    site = ethernet_site(tmp_path, {})
    assert outcomes(lossless.ECN.look(site)) == [UNTESTABLE]
    ethernet_site(tmp_path, {"ecn/roce_np/enable/3": "1", "ecn/roce_rp/enable/3": "0"})
    [found] = lossless.ECN.look(site)
    assert found.outcome is WARNING
    assert "roce_rp/enable/3" in found.mend
    ethernet_site(tmp_path, {"ecn/roce_rp/enable/3": "1"})
    assert outcomes(lossless.ECN.look(site)) == [OK]


def test_trust(tmp_path: Path) -> None:
    site = ethernet_site(tmp_path, {})
    assert outcomes(lossless.TRUST.look(site)) == [UNTESTABLE]
    ethernet_site(tmp_path, {"qos/trust": "pcp"})
    assert outcomes(lossless.TRUST.look(site)) == [WARNING]
    ethernet_site(tmp_path, {"qos/trust": "dscp"})
    assert outcomes(lossless.TRUST.look(site)) == [OK]


# --- the way to a peer


def test_route() -> None:
    good = json.dumps([{"dst": "10.0.0.2", "dev": "eth1"}])
    assert reach.look_at_route("eth1", "10.0.0.1", "10.0.0.2", 0, good).outcome is OK
    other = reach.look_at_route("eth2", "10.0.0.1", "10.0.0.2", 0, good)
    assert other.outcome is FAILED
    assert "leaves by eth1, not by eth2" in other.found
    none = reach.look_at_route("eth1", "", "10.0.0.2", 2, "RTNETLINK answers: Network is unreachable")
    assert none.outcome is FAILED
    assert "unreachable" in none.found
    assert reach.look_at_route("eth1", "", "10.0.0.2", 0, "[]").outcome is FAILED


ARP = """IP address       HW type     Flags       HW address            Mask     Device
10.0.0.2         0x1         0x2         52:54:00:00:00:02     *        eth1
10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        eth1
10.0.0.4         0x1         0x2         52:54:00:00:00:04     *        eth2"""


def test_neighbours() -> None:
    assert reach.look_at_neighbour("eth1", "10.0.0.2", ARP).outcome is OK
    assert reach.look_at_neighbour("eth1", "10.0.0.3", ARP).outcome is FAILED
    assert reach.look_at_neighbour("eth1", "10.0.0.4", ARP).outcome is WARNING
    assert reach.look_at_neighbour("eth1", "10.0.0.4", None).outcome is UNTESTABLE


def test_a_peer_is_asked_for_first(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    site = ethernet_site(plant(tmp_path, {"/proc/net/arp": ARP}), {})
    assert outcomes(reach.NEIGHBOUR.look(site)) == [UNTESTABLE]
    site.asked = Asked(ip="10.0.0.1", peer="10.0.0.2")
    site.round_trip = lambda own, peer: asked.append((own, peer))
    assert outcomes(reach.NEIGHBOUR.look(site)) == [OK]
    assert asked == [("10.0.0.1", "10.0.0.2")]


IPV6_LINKS = json.dumps(
    [
        {
            "ifname": "eth1",
            "flags": ["UP"],
            "addr_info": [
                {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"},
                {"family": "inet6", "local": "fd00::1", "prefixlen": 64, "scope": "global"},
            ],
        }
    ]
)
NEIGHBOUR = '[{"dst":"fd00::2","lladdr":"52:54:00:00:00:02","state":["%s"]}]'


def ipv6_site(tmp_path: Path, neighbour: str) -> Site:
    known = {
        "ip -json -6 address": IPV6_LINKS,
        "ip -json -6 neighbour show fd00::2 dev eth1": neighbour,
        "ip -json route get fd00::2 from fd00::1": json.dumps([{"dst": "fd00::2", "dev": "eth1"}]),
    }
    return Site(Asked(ip="fd00::1", peer="fd00::2"), tmp_path, programs(known))


@pytest.mark.parametrize(
    ("neighbour", "outcome", "words"),
    [
        (NEIGHBOUR % "REACHABLE", OK, "fd00::2 is 52:54:00:00:00:02 at eth1"),
        (NEIGHBOUR % "STALE", OK, "fd00::2 is 52:54:00:00:00:02 at eth1"),
        ('[{"dst":"fd00::2","state":["FAILED"]}]', FAILED, "does not answer neighbour solicitations"),
        ("[]", WARNING, "has no entry at eth1"),
        ("no json", WARNING, "has no entry at eth1"),
    ],
)
def test_an_ipv6_peer_is_looked_for_by_neighbour_discovery(
    tmp_path: Path, neighbour: str, outcome: Outcome, words: str
) -> None:
    site = ipv6_site(tmp_path, neighbour)
    [found] = reach.NEIGHBOUR.look(site)
    assert found.outcome is outcome
    assert words in found.found
    assert outcomes(reach.ROUTE.look(site)) == [OK]


def test_the_link_of_an_ipv6_address_is_found_and_those_of_links_are_none(tmp_path: Path) -> None:
    site = ipv6_site(tmp_path, "[]")
    assert site.links() == [("eth1", "fd00::1")]
    site.asked = Asked(ip="fe80::1")
    assert site.links() == []
    site.asked = Asked(ip="fd00::1", mtu=4096)
    plant(tmp_path, {"/sys/class/net/eth1/mtu": "1500"})
    assert outcomes(ethernet.MTU.look(site)) == [FAILED]


def test_a_route_to_an_ipv6_peer_is_mended_by_one_of_128_bits() -> None:
    found = reach.look_at_route("eth1", "fd00::1", "fd00::2", 0, '[{"dev": "eth0"}]')
    assert "ip route add fd00::2/128 dev eth1" in found.mend
    assert "ip -6 rule add from fd00::1" in found.mend


def subnet_site(root: Path, **values: str) -> Site:
    links = [address("eth1", "10.0.0.1"), address("eth2", "10.0.0.2"), address("eth3", "10.1.0.1")]
    plant(root, {f"/proc/sys/net/ipv4/conf/all/{name}": value for name, value in values.items()})
    return Site(root=root, run=programs({"ip -json -4 address": json.dumps(links)}))


def test_two_interfaces_of_one_subnet(tmp_path: Path) -> None:
    [found] = reach.SUBNETS.look(subnet_site(tmp_path, arp_ignore="0", arp_announce="0", rp_filter="1"))
    assert found.outcome is FAILED
    assert "eth1: arp_ignore, arp_announce, rp_filter" in found.found
    [found] = reach.SUBNETS.look(subnet_site(tmp_path, arp_ignore="1", arp_announce="2", rp_filter="2"))
    assert found.outcome is OK
    # The larger of the two values is in force.
    plant(tmp_path, {"/proc/sys/net/ipv4/conf/eth2/arp_announce": "0"})
    assert outcomes(reach.SUBNETS.look(subnet_site(tmp_path))) == [OK]
    assert reach.shared_subnets([("eth1", "10.0.0.1", 24), ("eth1", "10.0.0.9", 24)]) == {}


# --- the filter

NFT = """table inet filter {
	chain input {
		type filter hook input priority filter; policy %s;
		%s
	}
}"""


@pytest.mark.parametrize(
    ("policy", "rule", "outcome"),
    [
        ("accept", "", OK),
        ("drop", "", WARNING),
        ("drop", "udp dport 4791 accept", OK),
        ("drop", "udp dport { 53, 4791 } accept", OK),
        ("accept", "udp dport 4791 counter drop", FAILED),
        ("accept", "tcp dport 47910 drop", OK),
    ],
)
def test_nft(policy: str, rule: str, outcome: Outcome) -> None:
    assert firewall.look_at_nft(NFT % (policy, rule)).outcome is outcome


@pytest.mark.parametrize(
    ("policy", "rule", "outcome"),
    [
        ("ACCEPT", "", OK),
        ("DROP", "", WARNING),
        ("DROP", "-A INPUT -p udp -m udp --dport 4791 -j ACCEPT", OK),
        ("ACCEPT", "-A INPUT -p udp -m multiport --dports 53,4791 -j DROP", FAILED),
        ("ACCEPT", "-A INPUT -p udp --dport 14791 -j DROP", OK),
    ],
)
def test_iptables(policy: str, rule: str, outcome: Outcome) -> None:
    assert firewall.look_at_iptables(f"*filter\n:INPUT {policy} [0:0]\n{rule}\nCOMMIT\n").outcome is outcome


REFUSED = "Operation not permitted (you must be root)\nnetlink: Error: cache initialization failed"


def test_a_filter_that_only_root_may_read(tmp_path: Path) -> None:
    run = {"nft": Ran(1, REFUSED)}
    site = Site(root=tmp_path, run=lambda argv: run.get(argv[0]), is_root=False)
    site.again = "inaproto doctor --dir '/run/my ina' --ip 10.0.0.1"
    [found] = firewall.FIREWALL.look(site)
    assert "whether UDP 4791 is dropped is not known: the rules are for root alone" in found.found
    assert (found.outcome, found.mend) == (UNTESTABLE, f"sudo {site.again}")
    site.is_root = True
    [found] = firewall.FIREWALL.look(site)
    assert "nft: Operation not permitted (you must be root)" in found.found, "root of a container"
    assert "the machine itself" in found.mend
    site.is_root, run["nft"] = False, Ran(124, "no answer within 10 s")
    [found] = firewall.FIREWALL.look(site)
    assert ("nft: no answer within 10 s" in found.found, found.mend) == (True, ""), (
        "root would get none either"
    )


# --- daemons

HOST = {"role": "host", "name": "h0", "version": "0.1.0", "switch": {"connected": True}}
SWITCH = {"role": "switch", "name": "", "version": "0.1.0", "ports": [{}, {}], "jobs": []}


def test_daemons_that_do_not_work_are_named() -> None:
    site = Site(
        switches=[SWITCH], hosts=[HOST], problems=["/run/x.sock: nobody listens"], daemons_asked="/run"
    )
    assert outcomes(daemons.DAEMONS.look(site)) == [FAILED, OK, OK]
    assert outcomes(daemons.DAEMONS.look(Site())) == [UNTESTABLE]
    lost = daemons.look_at_host(HOST | {"switch": {"connected": False, "error": "refused", "path": "/x"}})
    assert (lost.outcome, "refused" in lost.found) == (FAILED, True)
    assert lost.mend == "start it: inaproto switch --dir /; or give host h0 another dir or control (now /x)"
    far = {"connected": False, "error": "refused", "path": "tls://spine@10.0.0.100:7420"}
    mend = daemons.look_at_host(HOST | {"switch": far}).mend
    assert mend.startswith("start it on its machine: systemctl start inaproto-switch; or")
    pushes = daemons.look_at_host(HOST | {"switch": {"connected": False}, "models": [{}]})
    assert (pushes.outcome, pushes.found) == (OK, "host h0 has no switch, and its models need none")
    away = daemons.look_at_switch(SWITCH | {"control": {"connected": False, "error": "gone", "path": "/x"}})
    assert away.outcome is FAILED


def test_a_problem_brings_its_own_mend(tmp_path: Path) -> None:
    gone = "/run/h9.sock: there is no such socket; in /run are h0.sock"
    [found] = daemons.DAEMONS.look(Site(root=tmp_path, problems=[gone], daemons_asked="/run"))
    assert (found.found, found.mend) == tuple(gone.split("; "))
    (tmp_path / "run" / "systemd" / "system").mkdir(parents=True)
    [found] = daemons.DAEMONS.look(Site(root=tmp_path, problems=[gone], daemons_asked="/run"))
    assert found.mend.startswith("in /run are h0.sock; systemctl status 'inaproto-*'; journalctl")
    closed = Site(root=tmp_path, problems=["/run: Permission denied"], daemons_asked="/run", is_root=False)
    [found] = daemons.DAEMONS.look(closed)
    assert found.mend == "sudo inaproto doctor"


def test_who_has_no_controller_where_others_have_one() -> None:
    told = {"controller": {"paths": ["/run/controller-agents.sock"], "error": ""}}
    site = Site(hosts=[HOST | told, HOST | {"name": "h1"}], switches=[SWITCH], daemons_asked="/run")
    fine, host, switch = daemons.CONTROLLER.look(site)
    assert [one.outcome for one in (fine, host, switch)] == [OK, WARNING, WARNING]
    assert "host h1 was started without --controller: it gets no jobs from" in host.found
    assert "switch was started without --controller: no job gets a tree there" in switch.found
    assert host.mend == "start host h1 anew with --controller /run/controller-agents.sock"
    [none] = daemons.CONTROLLER.look(Site(hosts=[HOST], daemons_asked="/run"))
    assert (none.outcome, "no daemon here has a controller" in none.found) == (UNTESTABLE, True)


def test_daemons_that_were_not_asked_and_those_that_do_not_answer() -> None:
    for check in (daemons.CONTROLLER, daemons.VERSIONS, daemons.PATH_MTUS):
        [nobody] = check.look(Site(again="inaproto doctor --ip 10.0.0.1"))
        assert nobody.outcome is UNTESTABLE
        assert "no daemon was asked, as none has its socket in" in nobody.found
        assert nobody.mend.startswith("inaproto doctor --ip 10.0.0.1 --dir DIRECTORY ")
        [silent] = check.look(Site(daemons_asked="/run/h9.sock", problems=["/run/h9.sock: gone"]))
        assert (silent.outcome, silent.found) == (UNTESTABLE, "no host or switch answers at /run/h9.sock")


def test_a_controller_in_the_directory_is_one_that_hosts_could_have(runtime_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(runtime_dir / "controller-agents.sock"))
        site = report.site(Asked(), runtime_dir, ())
    site.hosts = [HOST]
    [found] = daemons.CONTROLLER.look(site)
    assert found.mend == f"start host h0 anew with --controller {runtime_dir}/controller-agents.sock"


def test_a_controller_that_is_not_there_is_started_where_daemons_look_for_it() -> None:
    lost = {"error": "No such file or directory", "paths": ["/run/my ina/controller-agents.sock"]}
    (found,) = daemons.look_at_controller(HOST | {"controller": lost})
    assert found.mend.startswith("start it: inaproto controller --dir '/run/my ina' --cluster FILE; or give")


def test_what_is_to_be_pasted_asks_the_same_daemons() -> None:
    jobs = [{"name": "b", "path": "chain", "fallback": "no room"}]
    [found] = daemons.PATHS.look(Site(switches=[SWITCH | {"jobs": jobs}], status="inaproto status --dir /x"))
    assert found.mend.startswith("inaproto status --dir /x; docs/operating.md")


def test_a_daemon_without_its_controller() -> None:
    there = {"paths": ["tls://ctl@10.0.0.9:7421"], "error": ""}
    (found,) = daemons.look_at_controller(HOST | {"controller": there})
    assert found.outcome is OK
    (found,) = daemons.look_at_controller(SWITCH | {"controller": there | {"error": "Connection refused"}})
    assert (found.outcome, "Connection refused" in found.found) == (WARNING, True)
    assert "now tls://ctl@10.0.0.9:7421" in found.mend
    assert list(daemons.look_at_controller(HOST | {"controller": {"paths": [], "error": ""}})) == []
    assert list(daemons.look_at_controller(HOST)) == []


def test_versions_of_daemons() -> None:
    assert daemons.look_at_versions([("switch", "1"), ("host h0", "1")]).outcome is OK
    assert daemons.look_at_versions([("switch", "1"), ("host h0", "2")]).outcome is WARNING
    assert daemons.look_at_versions([("switch", ""), ("host h0", "")]).outcome is WARNING


def test_a_job_that_is_not_summed_by_the_switch_says_why() -> None:
    jobs = [
        {"name": "a", "path": "switch", "fallback": ""},
        {"name": "b", "path": "chain", "fallback": "no room"},
    ]
    good, bad = daemons.PATHS.look(Site(switches=[SWITCH | {"jobs": jobs}]))
    assert (good.outcome, bad.outcome) == (OK, WARNING)
    assert "no room" in bad.found


UNIT = {
    "ActiveState": "active",
    "UnitFileState": "enabled",
    "PrivateDevices": "no",
    "LimitMEMLOCK": "infinity",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_NETLINK",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [OK]),
        ({"ActiveState": "failed"}, [FAILED]),
        ({"UnitFileState": "disabled"}, [WARNING, OK]),
        ({"PrivateDevices": "yes"}, [FAILED]),
        ({"RestrictAddressFamilies": "AF_UNIX"}, [FAILED]),
        ({"RestrictAddressFamilies": ""}, [OK]),
        ({"LimitMEMLOCK": "65536"}, [WARNING, OK]),
    ],
)
def test_units(changed: dict[str, str], expected: list[Outcome]) -> None:
    text = "\n".join(f"{name}={value}" for name, value in (UNIT | changed).items())
    found = daemons.look_at_unit("inaproto-host@h0.service", text, wants_verbs=True)
    assert outcomes(found) == expected


def test_the_drop_in_for_verbs_is_what_the_check_wants() -> None:
    text = (Path(__file__).resolve().parents[2] / "deploy" / "verbs.conf").read_text()
    shown = "ActiveState=active\nUnitFileState=enabled\n" + text
    assert outcomes(daemons.look_at_unit("inaproto-host@h0.service", shown, wants_verbs=True)) == [OK]


# --- all of them


def test_of_what_systemd_says_the_first_line_is_told_whole() -> None:
    said = "System has not been booted with systemd as init system (PID 1). Can't operate."

    def run(argv: Sequence[str]) -> Ran:
        return Ran(1, f"{said}\nFailed to connect to bus: Host is down\n")

    [found] = daemons.UNITS.look(Site(run=run))
    assert found.outcome is UNTESTABLE
    assert found.found == f"systemd does not answer: {said}"


def test_every_check_has_an_answer_on_a_machine_that_has_nothing(tmp_path: Path) -> None:
    """No file, no program, no daemon: no check may raise, each says something, and names are unique."""
    checks = all_checks()
    assert len({check.name for check in checks}) == len(checks)
    for nic in ("auto", "verbs"):
        site = Site(Asked(ip="10.0.0.1", peer="10.0.0.2", nic=nic), tmp_path, programs({}))
        answers = examine(site, checks)
        assert all(answer.findings and answer.check.why for answer in answers)
        assert has_failed(answers) is (nic == "verbs")


def test_what_fails_says_how_to_mend_it(tmp_path: Path) -> None:
    garbage = programs(
        dict.fromkeys(("ip", "dcb", "ethtool", "nft", "iptables-save", "systemctl"), "garbage")
    )
    site = Site(Asked(ip="10.0.0.1", peer="10.0.0.2", interface="eth1", nic="verbs"), tmp_path, garbage)
    for answer in examine(site, all_checks()):
        for found in answer.findings:
            assert found.found
            assert found.mend or found.outcome in {OK, UNTESTABLE}, answer.check.name


def test_the_checklist_of_the_manual_is_the_doctor_s() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
    section = page.partition("## The checklist")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)
    assert named == [check.name for check in all_checks()]
    troubles = page.partition("## Troubles")[2]
    for line in troubles.splitlines()[4:]:
        for name in re.findall(r"\(((?:`[a-z-]+`(?:, )?)+)\)", line):
            assert set(re.findall("`(.+?)`", name)) <= set(named), line


def test_failed_is_what_counts() -> None:
    def always(outcome: Outcome) -> Check:
        return Check("x", "because", lambda site: [Finding(outcome, "it", "that")])

    for outcome in Outcome:
        assert has_failed(examine(Site(), [always(outcome)])) is (outcome is FAILED)


def program_at(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_programs_of_the_system_are_found_where_a_user_s_path_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "_SYSTEM_PROGRAMS", (str(tmp_path / "sbin"),))
    program_at(tmp_path / "sbin" / "ethtool-here", "#!/bin/sh\necho $1 $LC_ALL\n")
    program_at(tmp_path / "sbin" / "no-program", "\0\1")
    assert run_program(["ethtool-here", "-a"]) == Ran(0, "-a C\n")
    assert run_program(["no-program"]) is None
    assert run_program(["no-such-program"]) is None
