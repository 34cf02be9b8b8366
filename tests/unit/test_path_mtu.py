"""Hosts of a job agree on an MTU: the smallest of what their paths carry, in messages of as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing
from rich.console import Console

from inaproto.core.rendezvous.events import AcceleratorTakes, Noted, RendezvousConfig
from inaproto.core.switch.accelerator import InstallRing
from inaproto.daemon.host.path_mtu import PROBE_AGAIN_S, PathProbing
from inaproto.daemon.host.ring_settings import host_config, qp_attributes
from inaproto.daemon.observe.status import Report
from inaproto.daemon.observe.status_tables import show_report
from inaproto.daemon.settings.config import HostSettings, load_host_settings
from inaproto.daemon.switch.narrow_ports import PortSize, narrow_ports
from inaproto.doctor import daemons
from inaproto.doctor.findings import Outcome
from inaproto.doctor.site import Site
from inaproto.errors import FabricError, LocalMisuse, Unsupported
from inaproto.ports import NicCapabilities
from inaproto.wire.control_messages import Member, Ring
from inaproto.wire.messages.infiniband import InfinibandPort
from inaproto_hil.bench.traffic import ring_spec
from tests.unit.rendezvous_members import member
from tests.unit.rendezvous_world import World, refusal, sent
from tests.unit.test_carrier import TWO_HOSTS, ring

BYTES = 168 * 1024
OPENER = "rank 0 (h0, pid 1000), which opened the job, "


def of_mtu(rank: int, mtu: int, *, fits: bool = True) -> Member:
    return replace(member(rank), mtu=mtu, message_packets=BYTES // mtu, mtu_fits=fits)


def joined(members: Sequence[Member]) -> tuple[list[int], list[tuple[int, int]]]:
    """MTUs that hosts are told, and (MTU, packets of a message) of the ring in the switch."""
    world = World(config=RendezvousConfig())
    actions = [action for one in members for action in world.join(one)]
    specs = [action.spec for action in actions if isinstance(action, InstallRing)]
    return [told.mtu for _, told in sent(actions, Ring)], [(spec.mtu, spec.message_packets) for spec in specs]


@pytest.mark.parametrize(
    ("mtus", "fixed", "told"),
    [
        ((4096, 4096, 4096), (), 4096),
        ((4096, 1024, 2048), (), 1024),
        ((2048, 4096, 256), (), 256),
        ((4096, 1024, 1024), (1,), 1024),
        ((1024, 4096, 2048), (0,), 1024),
        ((1024, 1024, 1024), (0, 1), 1024),
        ((1024, 1024, 1024), (0, 1, 2), 0),
    ],
)
def test_a_ring_has_the_smallest_mtu_of_its_hosts(
    mtus: Sequence[int], fixed: Sequence[int], told: int
) -> None:
    """docs/protocol.md 12.4: hosts that can do with one MTU alone are told nothing, as before."""
    members = [of_mtu(rank, mtu, fits=rank not in fixed) for rank, mtu in enumerate(mtus)]
    mtu = told or 1024
    assert joined(members) == ([told] * 3, [(mtu, BYTES // mtu)])


@pytest.mark.parametrize(
    ("most", "mtus", "fixed", "mtu"),
    [
        (256, (1024, 1024, 1024), (), 256),
        (1024, (4096, 512, 4096), (), 512),
        (4096, (1024, 1024, 1024), (), 1024),
        (0, (4096, 4096, 4096), (), 4096),
        (256, (1024, 1024, 1024), (1,), 1024),
        (256, (1024, 1024, 1024), (0, 1, 2), 1024),
    ],
)
def test_a_ring_has_no_larger_mtu_than_the_accelerator_where_all_its_hosts_can_do_with_that(
    most: int, mtus: Sequence[int], fixed: Sequence[int], mtu: int
) -> None:
    """The others' it refuses, and says why."""
    world = World(config=RendezvousConfig())
    assert world.step(AcceleratorTakes(most)) == []
    members = [of_mtu(rank, its, fits=rank not in fixed) for rank, its in enumerate(mtus)]
    actions = [action for one in members for action in world.join(one)]
    (spec,) = (action.spec for action in actions if isinstance(action, InstallRing))
    assert (spec.mtu, spec.message_packets) == (mtu, BYTES // mtu)
    assert {told.mtu for _, told in sent(actions, Ring)} == {0 if len(fixed) == len(mtus) else mtu}
    notes = [action.text for action in actions if isinstance(action, Noted)]
    assert ("largest that the accelerator takes" in notes[-1]) is (mtu == most)


@pytest.mark.parametrize(("said", "mtu"), [((1024, 256), 256), ((256, 1024), 1024), ((256, 0), 4096)])
def test_what_the_accelerator_takes_is_what_was_said_of_it_last(said: Sequence[int], mtu: int) -> None:
    """A board may be taken out for another one, or be lost."""
    world = World(config=RendezvousConfig())
    for most in said:
        world.step(AcceleratorTakes(most))
    actions = [action for rank in range(3) for action in world.join(of_mtu(rank, 4096))]
    (spec,) = (action.spec for action in actions if isinstance(action, InstallRing))
    assert spec.mtu == mtu


@pytest.mark.parametrize(
    ("here", "asks", "words"),
    [
        (
            [of_mtu(0, 4096, fits=False)],
            of_mtu(1, 1024),
            "its mtu is 1024, the largest that its path carries, " + OPENER + "said 4096; give the",
        ),
        (
            [of_mtu(0, 1024)],
            of_mtu(1, 4096, fits=False),
            "its mtu is 4096, which its host daemon was given, " + OPENER + "said 1024; give the",
        ),
        (
            [of_mtu(0, 4096), of_mtu(1, 2048, fits=False)],
            of_mtu(2, 1024),
            "its mtu is 1024, the largest that its path carries, rank 1 (h1, pid 1001) said 2048; give the",
        ),
        (
            [member(0)],
            of_mtu(1, 4096),
            "its messages have 172032 bytes, " + OPENER + "said 174080; start",
        ),
    ],
)
def test_hosts_without_an_mtu_in_common_are_refused_by_name(
    here: Sequence[Member], asks: Member, words: str
) -> None:
    world = World(config=RendezvousConfig())
    for one in here:
        world.join(one)
    assert words in refusal(world.join(asks, session=asks.rank))


# --- the host


def settings(**changes: Any) -> HostSettings:
    return load_host_settings({"name": "h0", "ip": "10.0.0.1", "mtu": "auto", **changes}, None, {}).settings


@pytest.mark.parametrize(("packets", "nbytes"), [(170, BYTES), (4, 4096), (1, 4096), (1000, 1000 * 1024)])
@pytest.mark.parametrize("mtu", [256, 1024, 4096])
def test_a_message_has_the_same_bytes_whatever_mtu_is_found(mtu: int, packets: int, nbytes: int) -> None:
    config = host_config("j", settings(message_packets=packets), mtu=mtu)
    assert (config.mtu, config.message_bytes, config.mtu_fits) == (mtu, nbytes, True)
    assert qp_attributes(settings(), mtu).mtu == mtu


def test_an_mtu_of_the_settings_stays_what_it_is() -> None:
    fixed = settings(mtu="2048")
    config = host_config("j", fixed, mtu=256)
    assert (config.mtu, config.message_packets, config.mtu_fits) == (2048, 170, False)
    assert config.with_mtu(256) == config
    assert qp_attributes(fixed, 256).mtu == 2048


def test_an_engine_has_the_mtu_of_its_ring() -> None:
    config = host_config("j", settings(), mtu=4096)
    made = config.ring(replace(ring(TWO_HOSTS), mtu=1024))
    assert (made.mtu, made.message_packets, made.tensor_bytes) == (1024, 168, config.tensor_bytes)
    assert config.ring(ring(TWO_HOSTS)).mtu == 4096
    elsewhere = config.with_mtu(512)
    assert (elsewhere.mtu, elsewhere.message_bytes) == (512, BYTES)
    assert config.with_mtu(0) is config


def test_a_ring_whose_mtu_messages_cannot_have_is_refused() -> None:
    config = host_config("j", settings(mtu="1024"))
    with pytest.raises(LocalMisuse, match="MTU 512 with messages of 174080 bytes"):
        config.ring(replace(ring(TWO_HOSTS), mtu=512))
    with pytest.raises(LocalMisuse, match="MTU 5000 with messages of"):
        host_config("j", settings()).ring(replace(ring(TWO_HOSTS), mtu=5000))


class Path:
    """A NIC whose path carries RoCE packets of ``mtu`` bytes; 0: no frame comes back."""

    capabilities = NicCapabilities("a NIC", bytes(6), bytes(4), 4096, 8, retry_forever=True)

    def __init__(self, mtu: int, *fails: Exception) -> None:
        self.mtu = mtu
        self.asked: list[Sequence[int]] = []
        self._fails = list(fails)

    async def probe_path(self, mtus: Sequence[int]) -> int:
        await trio.lowlevel.checkpoint()
        self.asked.append(mtus)
        if self._fails:
            raise self._fails.pop(0)
        return max((mtu for mtu in mtus if mtu <= self.mtu), default=0)


def probing(path: Any, mtu: str = "auto", *, answers: bool = True, largest: int = 4096) -> PathProbing:
    return PathProbing(settings(mtu=mtu), path, mtu_max=largest, answers=answers)


def in_time(scenario: Callable[[], Any]) -> None:
    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("asked", "carries", "largest", "mtu", "problem"),
    [
        ("auto", 4096, 4096, 4096, ""),
        ("auto", 1024, 4096, 1024, ""),
        ("auto", 4096, 2048, 2048, ""),
        ("auto", 0, 4096, 1024, ""),
        ("auto", 0, 512, 512, ""),
        ("2048", 4096, 4096, 2048, ""),
        ("2048", 0, 4096, 2048, ""),
        (
            "2048",
            1024,
            4096,
            2048,
            "mtu is 2048, and the path to the switch carries",
        ),
    ],
)
def test_what_a_path_carries_is_used_and_no_more(
    asked: str, carries: int, largest: int, mtu: int, problem: str
) -> None:
    its = probing(Path(carries), asked, largest=largest)
    in_time(its.look)
    assert its.found.mtu == mtu
    assert its.found.problem.startswith(problem)
    assert bool(its.found.problem) == bool(problem)
    told = "no switch has answered: none is at this host's link, or frames of no size come back"
    assert its.found.status()["unknown"] == ("" if carries else told)


def test_a_path_that_is_mended_is_found_to_be() -> None:
    path = Path(1024)
    its = probing(path, "4096")

    async def scenario() -> None:
        await its.look()
        assert its.found.problem
        async with trio.open_nursery() as nursery:
            nursery.start_soon(its.keep_looking)
            await trio.sleep(2.5 * PROBE_AGAIN_S)
            assert len(path.asked) == 3
            path.mtu = 4096
            await trio.sleep(10 * PROBE_AGAIN_S)

    in_time(scenario)
    assert (its.found.problem, its.found.carries, len(path.asked)) == ("", 4096, 4)


def test_a_switch_that_answers_no_probes_is_asked_none() -> None:
    path = Path(4096)
    its = probing(path, answers=False)
    in_time(its.look)
    in_time(its.keep_looking)
    assert (path.asked, its.found.mtu) == ([], 1024)
    assert "answers no probes" in its.found.status()["unknown"]


def test_a_nic_that_can_ask_nothing_says_why_once_and_is_asked_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = Path(4096, Unsupported("a packet socket", "it takes CAP_NET_RAW"))
    its = probing(path)
    in_time(its.look)
    in_time(its.keep_looking)
    in_time(its.look)
    assert (len(path.asked), its.found.mtu, its.found.problem) == (1, 1024, "")
    why = "a packet socket is not available: it takes CAP_NET_RAW"
    assert its.found.status()["unknown"] == why
    assert [record.getMessage() for record in caplog.records] == [f"host h0: its path is not known: {why}"]


def test_a_nic_that_cannot_ask_now_asks_again() -> None:
    path = Path(4096, *[FabricError("attach", "eth1", "opening", "down", retryable=True)] * 2)
    its = probing(path)
    in_time(its.look)
    assert (its.found.mtu, "opening: down" in its.found.status()["unknown"]) == (1024, True)
    in_time(its.keep_looking)
    assert (its.found.mtu, len(path.asked)) == (4096, 3)


def test_answers_that_are_lost_later_leave_what_is_known() -> None:
    path = Path(1024)
    its = probing(path, "4096")
    in_time(its.look)
    path.mtu = 0
    in_time(its.look)
    assert (its.found.carries, its.found.status()["unknown"], bool(its.found.problem)) == (1024, "", True)


def test_a_path_that_carries_less_than_before_is_taken_at_its_word() -> None:
    path = Path(2048)
    its = probing(path)
    in_time(its.look)
    path.mtu = 512
    in_time(its.look)
    assert its.found.mtu == 512


@pytest.mark.parametrize(
    ("answers", "asked", "mtu"), [(True, "auto", 2048), (False, "auto", 1024), (True, "512", 512)]
)
def test_on_infiniband_the_mtu_is_that_of_the_port(answers: bool, asked: str, mtu: int) -> None:
    """A switch of a release that lets hosts of a job differ says so by answering probes."""
    path = Path(4096)
    path.capabilities = replace(path.capabilities, infiniband=InfinibandPort(gid=bytes(15) + b"\1", lid=7))
    its = probing(path, asked, answers=answers, largest=2048)
    in_time(its.look)
    in_time(its.keep_looking)
    assert (path.asked, its.found.mtu, its.found.problem) == ([], mtu, "")
    told = "on InfiniBand nothing is asked" if answers else "answers no probes"
    assert told in its.found.status()["unknown"]


# --- what people are told

PROBLEM = {
    "asked": 4096,
    "largest": 4096,
    "carries": 1024,
    "unknown": "",
    "problem": "mtu is 4096, and the path carries 1024; ip link set INTERFACE mtu 4200",
}
SMALLER = PROBLEM | {"asked": "auto", "problem": ""}
NARROW = {"port": "packet:eth1", "job": "train", "ring_id": 7, "mtu": 4096, "carries": 1024}


def test_a_port_that_is_too_small_for_a_ring_is_named_where_its_host_is() -> None:
    spec = replace(ring_spec(2, mtu=4096), job="train", ring_id=7)
    behind = {flow.src_mac: 1 + flow.rank for flow in spec.flows}
    ports = {1: PortSize("packet:eth1", 1514), 2: PortSize("packet:eth2", 4096 + 78)}
    assert narrow_ports([spec], behind, ports) == [NARROW]
    assert narrow_ports([replace(spec, mtu=1024)], behind, ports) == []
    assert narrow_ports([spec], {}, ports) == [], "nobody knows where its hosts are"


def doctor(hosts: Sequence[Any] = (), switches: Sequence[Any] = ()) -> list[tuple[Outcome, str, str]]:
    found = daemons.PATH_MTUS.look(Site(hosts=hosts, switches=switches))
    return [(one.outcome, one.found, one.mend) for one in found]


def test_the_doctor_says_what_paths_carry() -> None:
    ((outcome, found, mend),) = doctor([{"name": "h0", "path": PROBLEM}])
    assert (outcome, mend) == (Outcome.FAILED, "ip link set INTERFACE mtu 4200")
    assert found == "host h0: mtu is 4096, and the path carries 1024"
    whole = SMALLER | {"carries": 4096}
    unknown = SMALLER | {"carries": 0, "unknown": "the switch has not answered"}
    told = doctor([{"name": "h0", "path": one} for one in (SMALLER, whole, unknown)] + [{"name": "h1"}])
    assert [one[0] for one in told] == [Outcome.WARNING, Outcome.OK, Outcome.UNTESTABLE]
    assert "carries RoCE packets of 1024 bytes; NIC and switch could 4096" in told[0][1]
    assert "not known: the switch has not answered" in told[2][1]
    ((outcome, found, mend),) = doctor(switches=[{"narrow_ports": [NARROW]}, {}])
    assert outcome is Outcome.FAILED
    assert "packet:eth1 carries RoCE packets of 1024 bytes at most, and job train has 4096" in found
    assert mend.startswith("ip link set eth1 mtu 4200")
    assert [one[0] for one in doctor()] == [Outcome.UNTESTABLE]


@pytest.mark.parametrize(
    ("port", "mend"),
    [
        ("packet:eth1+eth2", "ip link set eth1 mtu 4200; ip link set eth2 mtu 4200, or"),
        ("port-3", "mtu 4200 at its far end, or"),
    ],
)
def test_the_doctor_gives_a_command_for_each_interface(port: str, mend: str) -> None:
    ((_, _, told),) = doctor(switches=[{"narrow_ports": [NARROW | {"port": port}]}])
    assert told.startswith(mend)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (None, ""),
        (PROBLEM, "mtu is 4096, and the path carries 1024"),
        (SMALLER, "its path carries RoCE packets of 1024 bytes; NIC and switch could 4096"),
        (SMALLER | {"carries": 4096}, ""),
        (SMALLER | {"carries": 0, "unknown": "why"}, "its path to the switch is not known: why"),
    ],
)
def test_the_status_of_a_host_says_what_somebody_should_know_of_its_path(
    path: dict[str, Any] | None, words: str
) -> None:
    host = {"name": "h0", "ip": "10.0.0.1", "switch": {"connected": True, "path": "/run"}, "path": path}
    console = Console(width=200, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show_report(Report(switch=None, hosts=[host], problems=[])))
    lines = capture.get().splitlines()[1:]
    assert len(lines) == bool(words)
    assert all(words in line for line in lines)
