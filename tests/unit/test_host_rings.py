"""What links a ring needs, whom they go to, what is said of those that fail, and who is in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from inaproto.core.host.carrier import Carrier
from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.host_tree import OverlayEngine
from inaproto.core.host.engines.in_network import RingEngine
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.engines.two_paths import TwoPaths
from inaproto.core.host.events import (
    ConnectionFailed,
    ConnectLink,
    ConnectTree,
    LinkAddresses,
    LinkShape,
    LinksOpened,
    OpenLinks,
)
from inaproto.core.host.operations import BASE, INA, UP
from inaproto.core.host.ranks import REASON_CHARACTERS_MAX, HostedRank, HostedRanks
from inaproto.core.host.reports import halted
from inaproto.core.host.ring_words import explain_positions
from inaproto.core.host.rings import accumulators_of, connections_of, links_for, why_connection_failed
from inaproto.core.plan.accumulators import RotatedAccumulators
from inaproto.core.rdma.verbs import Completion, CompletionKind, Status
from inaproto.units import Epoch, Instant, Rank, RingId
from inaproto.wire.control_messages import Gone, Halted, Ring, RingPath
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.messages.client import Join
from tests.unit.test_carrier import BESIDE_ONE, CONFIG, INTO, OUT, TWO_HOSTS, begun, carrier, ring

THREE, SEVEN = ((0,), (1,), (2,)), tuple((rank,) for rank in range(7))
FULL = CONFIG.message_bytes
TWICE = 2 * (FULL - INA_HEADER_BYTES) + INA_HEADER_BYTES
"""A slot for two sums of a message: a nested list is added by itself."""
NEAR, FAR = replace(INTO, qpn=20), replace(INTO, qpn=21)


@pytest.mark.parametrize(
    ("path", "plan", "base", "ina"),
    [
        ("switch", "", LinkShape(4, FULL), None),
        ("chain", "", LinkShape(4, TWICE), None),
        ("chain", "[0, 1, 2]", LinkShape(4, TWICE), None),
        ("ring", "", LinkShape(4, TWICE), None),
        ("shared", "", LinkShape(4, TWICE), LinkShape(4, FULL)),
        ("overlay", "", LinkShape(2, TWICE, 2), None),
    ],
)
def test_the_links_of_a_path(path: RingPath, plan: str, base: LinkShape, ina: LinkShape | None) -> None:
    assert links_for(CONFIG, path, plan, size=3, children=2) == OpenLinks(base, ina)


def overlay(position: int) -> Ring:
    return replace(ring(THREE, "overlay"), position=position, in_degree=2, successor=NEAR, below=(FAR,))


def beside(**fields: Any) -> Ring:
    """A ring that names neighbours in another one."""
    return replace(ring(TWO_HOSTS), ina_successor=NEAR, **fields)


@pytest.mark.parametrize(
    ("where", "has_ina", "expected"),
    [
        (ring(((0, 1),)), True, []),
        (ring(TWO_HOSTS), False, [ConnectLink(BASE, INTO, OUT)]),
        (replace(ring(TWO_HOSTS), udp_source_port=7), False, [ConnectLink(BASE, INTO, OUT, 7)]),
        (
            replace(ring(TWO_HOSTS), ina_successor=NEAR, ina_predecessor=OUT),
            False,
            [ConnectLink(BASE, INTO, OUT)],
        ),
        (
            replace(ring(TWO_HOSTS), ina_successor=NEAR, ina_predecessor=OUT),
            True,
            [ConnectLink(BASE, INTO, OUT), ConnectLink(INA, NEAR, OUT)],
        ),
        (beside(ina_predecessor=OUT), False, [ConnectLink(BASE, INTO, OUT)]),
        (beside(ina_predecessor=OUT), True, [ConnectLink(BASE, INTO, OUT), ConnectLink(INA, NEAR, OUT)]),
        (beside(), True, [ConnectLink(BASE, INTO, OUT)]),
        (overlay(0), False, [ConnectTree(None, (FAR,))]),
        (overlay(1), False, [ConnectTree(NEAR, (FAR,))]),
    ],
)
def test_whom_a_host_is_connected_to(
    where: Ring, has_ina: bool, expected: list[ConnectLink | ConnectTree]
) -> None:
    assert connections_of(where, has_ina=has_ina) == expected


ENGINES: dict[RingPath, type] = {
    "switch": RingEngine,
    "chain": ChainEngine,
    "ring": RingAllReduceEngine,
    "shared": TwoPaths,
    "overlay": OverlayEngine,
}


@pytest.mark.parametrize("path", get_args(RingPath))
def test_the_engine_of_a_path_goes_on_in_the_next_ring(path: RingPath) -> None:
    made = carrier(0, size=3)
    here = replace(ring(THREE, path), in_degree=1)
    for resumes in (False, True):
        made.connect(here)
        engine = made.engine
        assert type(engine) is ENGINES[path]
        assert made.resumes is resumes
        made.start(Instant(0))
    assert (accumulators_of(here) is None) == (path in ("switch", "overlay"))
    assert isinstance(accumulators_of(here), RotatedAccumulators) == (path == "ring")


@pytest.mark.parametrize(
    ("where", "edge", "at_out", "text"),
    [
        (ring(THREE), 0, True, "to rank 1 on host h1"),
        (ring(THREE), 0, False, "from rank 2 on host h2"),
        (replace(ring(THREE), position=2), 0, True, "to rank 0 on host h0"),
        (ring(BESIDE_ONE), 0, False, "from rank 1 on host h1"),
        (replace(ring(BESIDE_ONE), position=1), 0, True, "to ranks 0, 2 on host h0"),
        (replace(ring(THREE), ranks=((0,),)), 0, True, "to rank ? on host h1"),
        (overlay(0), UP + 1, True, "to rank 1 on host h1"),
        (overlay(0), UP + 2, True, "to rank 2 on host h2"),
        (overlay(1), UP, True, "to rank 0 on host h0"),
        (overlay(0), UP, True, "to rank 0 on host h0"),
    ],
)
def test_which_connection_has_failed_is_said(where: Ring, edge: int, at_out: bool, text: str) -> None:
    completion = Completion(17, CompletionKind.SEND, 0, Status.RETRY_EXCEEDED)
    why = why_connection_failed("j", where, ConnectionFailed(BASE, edge, at_out, completion))
    me = ", ".join(map(str, where.ranks[where.position]))
    assert why == (
        f"rank{'s' * (', ' in me)} {me} of job 'j': the connection {text} failed: transport retry counter "
        "exceeded; look at that host and at the links between"
    )


def test_positions_are_explained_where_they_are_not_the_ranks() -> None:
    assert explain_positions(None) == explain_positions(ring(THREE)) == ""
    said = "; places in this ring are of hosts: 0 is h0 (ranks 0, 2), 1 is h1 (rank 1)"
    assert explain_positions(ring(BESIDE_ONE)) == said


def test_an_engine_is_configured_as_its_host_and_its_ring_are() -> None:
    host = replace(CONFIG, mtu=512, message_packets=5, window_messages=3, operations_max=7, recover_ns=1)
    made = host.ring(replace(ring(THREE), ring_id=6, epoch=2, ring_key=3, position=1))
    assert (made.ring_id, made.epoch, made.key, made.rank) == (RingId(6), Epoch(2), 3, Rank(1))
    assert (made.ring_size, made.mtu, made.message_packets, made.window_messages) == (3, 512, 5, 3)
    assert (made.operations_max, made.stall_ns, made.timeout_ns) == (7, host.stall_ns, host.timeout_ns)
    assert made.outlived
    assert not replace(host, recover_ns=0).ring(ring(THREE)).outlived
    assert host.ring(ring(THREE), 9).ring_id == 9


def test_what_a_process_asked_for_is_said_of_its_rank() -> None:
    join = Join(id=1, job="j", rank=2, size=3, key="k", pid=7, path="chain", exact_plan=False, elastic=True)
    rank = HostedRank(join, 5, left_after=4)
    member = rank.member(CONFIG, LinkAddresses(OUT, INTO), progress=6, boot_id="b")
    asked = (member.id, member.job, member.rank, member.size, member.key, member.pid, member.host)
    assert asked == (5, "j", 2, 3, "k", 7, "h0")
    assert (member.path, member.exact_plan, member.elastic, member.left_after) == ("chain", False, True, 4)
    assert (member.mtu, member.window_messages, member.message_packets) == (256, 2, 3)
    assert (member.out, member.into, member.progress, member.boot_id) == (OUT, INTO, 6, "b")
    assert rank.gone("x" * 2000, ring_id=8) == Gone(
        job="j", rank=2, reason="x" * REASON_CHARACTERS_MAX, ring_id=8
    )
    ranks = HostedRanks()
    assert ranks.size == 0
    ranks.add(rank)
    assert (ranks.size, ranks.lowest, ranks.have_all_left, ranks.are_elastic) == (3, 2, True, True)
    assert ranks.describe("j") == str(rank) == "rank 2 of job 'j' (pid 7)"
    assert ranks.gone("why") == [], "it has left"


def test_a_host_that_is_halted_says_where_it_is_reached() -> None:
    ranks = HostedRanks()
    for number in (2, 1):
        ranks.add(HostedRank(Join(id=1, job="j", rank=number, size=3, key="", pid=7), number))
    links = LinksOpened(LinkAddresses(OUT, INTO, (FAR,)), LinkAddresses(OUT, NEAR))
    said = Halted(job="j", rank=1, ring_id=5, progress=6, out=OUT, into=INTO, below=(FAR,))
    with_ina = replace(said, ina_out=OUT, ina_into=NEAR)
    assert halted("j", ranks, ring_id=5, progress=6, links=links) == with_ina
    assert halted("j", ranks, ring_id=5, progress=6, links=replace(links, ina=None)) == said


def test_a_host_that_is_in_no_ring_waits_for_nothing() -> None:
    made: Carrier = carrier(0, size=2)
    assert (made.deadline, made.progress, made.wait, made.waits_here) == (None, 0, None, False)
    assert begun().deadline is None
