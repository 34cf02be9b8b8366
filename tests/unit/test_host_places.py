"""Places in a host's collective library that a controller gives and takes back (docs/protocol.md 17)."""

from __future__ import annotations

import pytest

from inaproto.core.grants.places import Places
from inaproto.daemon.host.grants import HostGrants
from inaproto.wire.messages.controller import AgentWelcome, GrantRecord


def place(number: int, job: str = "train") -> GrantRecord:
    return GrantRecord(grant=number, job=1, name=job, kind="place", slots=())


def seat(number: int, job: str = "train") -> GrantRecord:
    return GrantRecord(grant=number, job=1, name=job, kind="seats", slots=(), ranks=1, size=2)


class Host:
    """A host whose controller gives places."""

    def __init__(self, *, gives_places: bool = True) -> None:
        self.moves = 0
        self.grants = HostGrants(
            cut_off=lambda job, ranks, why: None,
            given_up=lambda: None,
            changed=lambda: None,
            moved=self._moved,
        )
        self.places = self.grants.places
        self.grants.connected(
            AgentWelcome(term=1, report_ms=1, gives_places=gives_places), lambda message: None
        )

    def _moved(self) -> None:
        self.moves += 1

    @property
    def holds(self) -> dict[int, str]:
        return {hold.grant: hold.phase for hold in self.places.holds()}


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_job_that_no_controller_has_placed_needs_none(host: Host) -> None:
    assert host.places.may_attach("train")


def test_a_placed_job_attaches_with_a_place_alone(host: Host) -> None:
    host.grants.want([seat(1)])
    assert not host.places.may_attach("train")
    host.grants.want([seat(1), place(2)])
    assert host.places.may_attach("train")
    assert host.places.may_attach("train#0/2"), "so do its parallel rings"


def test_a_controller_that_gives_none_is_not_asked_for_one() -> None:
    host = Host(gives_places=False)
    host.grants.want([seat(1)])
    assert host.places.may_attach("train")


def test_before_a_controller_came_no_place_is_needed() -> None:
    assert Places(lambda job: True).may_attach("train")


def test_one_that_is_given_again_by_its_number_is_that_of_new_attachments_too(host: Host) -> None:
    host.grants.want([place(2)])
    host.places.begins("train")
    host.grants.want([])
    host.grants.want([place(2)])
    host.places.attached(host.places.begins("train"))
    assert host.holds == {2: "running"}


def test_a_place_that_is_taken_back_is_held_until_the_last_attachment_is_over(host: Host) -> None:
    host.grants.want([seat(1), place(2)])
    one, other = host.places.begins("train#0/2"), host.places.begins("train#1/2")
    assert host.holds == {2: "held"}
    host.places.attached(one)
    assert host.holds == {2: "running"}
    host.grants.want([seat(1)])
    assert not host.places.may_attach("train")
    assert host.holds == {2: "running"}
    host.places.ends(one)
    assert host.holds == {2: "held"}
    host.places.ends(other)
    assert host.holds == {}


def test_one_without_an_attachment_is_given_back_at_once(host: Host) -> None:
    host.grants.want([seat(1), place(2)])
    host.grants.want([seat(1)])
    assert host.holds == {}


def test_one_that_is_given_again_before_it_was_left_is_another(host: Host) -> None:
    host.grants.want([seat(1), place(2)])
    attaching = host.places.begins("train")
    host.grants.want([seat(1)])
    host.grants.want([seat(1), place(3)])
    assert host.holds == {2: "held", 3: "held"}
    host.places.ends(attaching)
    assert host.holds == {3: "held"}


def test_one_is_not_held_for_the_attachment_of_a_later_job_of_the_same_name(host: Host) -> None:
    host.grants.want([seat(1), place(2)])
    old = host.places.begins("train")
    host.places.attached(old)
    host.grants.want([])
    host.grants.want([seat(3), place(4)])
    new = host.places.begins("train")
    host.places.ends(old)
    assert host.holds == {4: "held"}
    host.places.attached(new)
    assert host.holds == {4: "running"}


def test_the_places_of_other_jobs_stay(host: Host) -> None:
    host.grants.want([place(2, "a"), place(3, "b")])
    one, _ = host.places.begins("a"), host.places.begins("b")
    host.grants.want([])
    host.places.ends(one)
    assert host.holds == {3: "held"}


def test_an_end_is_news_once(host: Host) -> None:
    attaching = host.places.begins("train")
    host.places.attached(attaching)
    assert host.places.ends(attaching)
    assert not host.places.ends(attaching)


def test_rings_are_told_when_places_are_wished(host: Host) -> None:
    moves = host.moves
    host.grants.want([])
    assert host.moves == moves + 1
