"""What counts of the links that hosts have measured, for a job of some of them."""

from __future__ import annotations

import pytest

from inaproto.core.rendezvous.link_measures import FRESH_NS, LinkMeasure, LinkMeasures
from inaproto.core.rendezvous.path_costs import LinkFigures
from inaproto.errors import LocalMisuse
from inaproto.units import Instant


def measures(*found: tuple[str, int, int], links_max: int = 4096) -> LinkMeasures:
    """Of links such as ``ab``."""
    known = LinkMeasures(links_max=links_max)
    for number, (hosts, latency_ns, rate_bps) in enumerate(found):
        known.note(LinkMeasure((hosts[0], hosts[1]), latency_ns, rate_bps, Instant(number)))
    return known


def test_the_slowest_link_between_hosts_of_the_job_counts() -> None:
    known = measures(("ab", 10, 500), ("bc", 30, 900), ("cd", 99, 1))
    assert known.figures(["a", "b", "c"]) == LinkFigures(30, 500)
    assert known.figures(["a", "b"], 7) == LinkFigures(10, 500, 7)


def test_where_a_host_has_none_to_another_of_the_job_those_to_anybody_count() -> None:
    known = measures(("ab", 10, 500), ("bc", 30, 900))
    assert known.figures(["a", "c"]) == LinkFigures(30, 500)


def test_of_a_host_that_nobody_has_measured_nothing_is_known() -> None:
    known = measures(("ab", 10, 500))
    assert known.figures(["a", "b", "c"]) is None
    assert LinkMeasures().figures(["a", "b"]) is None


def test_the_last_measure_of_a_link_replaces_the_one_before_whoever_made_it() -> None:
    known = measures(("ab", 10, 500), ("ba", 20, 400))
    assert known.figures(["a", "b"]) == LinkFigures(20, 400)
    assert [one.hosts for one in known.all()] == [("b", "a")]


def test_a_measure_is_fresh_for_some_time_either_way_round() -> None:
    known = measures(("ab", 10, 500))
    assert known.is_fresh(("b", "a"), Instant(FRESH_NS - 1))
    assert not known.is_fresh(("a", "b"), Instant(FRESH_NS))
    assert not known.is_fresh(("a", "c"), Instant(0))


def test_the_newest_are_kept() -> None:
    known = measures(("ab", 1, 1), ("bc", 2, 2), ("ba", 3, 3), ("cd", 4, 4), links_max=2)
    assert [one.hosts for one in known.all()] == [("b", "a"), ("c", "d")]


@pytest.mark.parametrize(("hosts", "latency_ns", "rate_bps"), [("aa", 1, 1), ("ab", -1, 1), ("ab", 1, 0)])
def test_what_no_link_is_is_misuse(hosts: str, latency_ns: int, rate_bps: int) -> None:
    with pytest.raises(LocalMisuse, match="is of no link"):
        measures((hosts, latency_ns, rate_bps))


def test_figures_are_said_in_words() -> None:
    assert str(LinkFigures(1500, 2 * 10**9)) == "1.5 us a hop, 2000 Mbit/s"
    assert str(LinkFigures(1500, 10**10, 4 * 10**8)) == "1.5 us a hop, 10000 Mbit/s, switches 400 Mbit/s"
