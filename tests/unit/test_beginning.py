"""What a ring waits for at a host before it begins."""

from __future__ import annotations

from dataclasses import replace

from inaproto.core.host.beginning import Beginning
from inaproto.core.host.events import ConnectionFailed, ConnectLink, ConnectTree
from inaproto.core.host.operations import BASE, INA, UP
from inaproto.core.rdma.verbs import Completion, CompletionKind, Status
from tests.unit.test_host_job import INTO, OUT, ring

ONE, OTHER = replace(ring(5), ring_id=5), replace(ring(5), ring_id=6)


def test_a_ring_begins_with_the_answers_to_all_ranks_here_of_that_ring() -> None:
    beginning = Beginning()
    assert not beginning.answered(0, OTHER, (0, 1))
    assert not beginning.answered(1, ONE, (0, 1)), "of two rings"
    assert (beginning.answered_of(5), beginning.answered_of(6)) == ([1], [0])
    assert beginning.answered(0, ONE, (0, 1))
    assert beginning.answered_of(5) == []


def test_a_rank_that_joins_no_more_has_no_answer() -> None:
    beginning = Beginning()
    beginning.answered(0, ONE, (0, 1))
    beginning.withdraw(1)
    assert beginning.answered_of(5) == [0]
    beginning.withdraw(0)
    assert not beginning.answered(1, ONE, (0, 1))


def test_links_are_waited_for_until_they_are_connected_and_tell_what_failed_first() -> None:
    beginning = Beginning()
    assert not beginning.awaits(BASE)
    beginning.connect([ConnectLink(BASE, INTO, OUT), ConnectLink(INA, INTO, OUT)])
    first, second = (
        ConnectionFailed(BASE, UP, True, Completion(17, CompletionKind.SEND, 1, status))
        for status in (Status.RETRY_EXCEEDED, Status.REMOTE_ACCESS)
    )
    assert beginning.failed_early("j", ONE, first) == ""
    assert beginning.failed_early("j", ONE, second) == ""
    told = beginning.connected(BASE, "")
    assert Status.RETRY_EXCEEDED.value in told
    assert "job 'j'" in told
    assert Status.REMOTE_ACCESS.value in beginning.failed_early("j", ONE, second), "it is waited for no more"
    assert beginning.awaits(INA)
    assert beginning.connected(INA, "no memory") == "no memory"
    assert beginning.is_connected


def test_a_tree_of_hosts_is_the_base_link() -> None:
    beginning = Beginning()
    beginning.connect([ConnectTree(None, ())])
    assert beginning.awaits(BASE)


def test_a_ring_that_has_ended_waits_for_nothing() -> None:
    beginning = Beginning()
    beginning.answered(0, ONE, (0, 1))
    beginning.connect([ConnectLink(BASE, INTO, OUT)])
    beginning.clear()
    assert (beginning.answered_of(5), beginning.is_connected) == ([], True)
