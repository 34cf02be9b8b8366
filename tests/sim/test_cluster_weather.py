"""What befalls real clusters, one kind at a time, in small control worlds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from inaproto.errors import ConfigError
from inaproto.sim.control.config import DRIFT_MAX_PPM, RULES, ControlConfig, ControlFault, FaultKind, Rule
from inaproto.sim.control.stops import NO_CAUSE
from inaproto.sim.control.world import ControlResult, ControlWorld
from inaproto.sim.kernel.machine import Machine, Timer
from inaproto.units import MS, US, Instant, S
from tests.sim.test_control_world import job, world

BOTH = pytest.mark.parametrize("rule", RULES)
EITHER_WAY = pytest.mark.parametrize("amount", [0, 1], ids=["out", "in"])


def config(rule: Rule = "by-index", *faults: ControlFault, **changes: object) -> ControlConfig:
    """Two racks of two hosts; a job on each, which share a pool, and the first of which is struck."""
    plain = world(
        rule,
        hosts=4,
        jobs=(job(0, hosts=(0, 1), operations=200), job(1, hosts=(2, 3), operations=400)),
        faults=faults,
        weather_until_ns=200 * MS,
        heartbeat_ns=2 * MS,
        host_lease_ns=8 * MS,
        silent_ns=40 * MS,
        slot_lease_ns=60 * MS,
        lease_ns=4 * MS,
        mute_ns=12 * MS,
        failed_max=3,
        stuck_ns=6 * MS,
        rack_hosts=2,
        again_ns=MS,
        chain_by_links=True,
        tells_changes=True,
        stop_ns=30 * MS,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def run(given: ControlConfig) -> ControlResult:
    result = ControlWorld(given).run()
    assert result.violation is None, result.violation
    assert result.marks["a job ended"] == len(given.jobs)
    return result


def cause(result: ControlResult, name: str = "job0") -> str:
    return next((stop.kind for stop in result.stops if stop.job == name), NO_CAUSE)


@BOTH
def test_without_weather_no_job_stops_for_long(rule: Rule) -> None:
    result = run(config(rule))
    assert all(stop.stopped_ns < 10 * MS and stop.kind == NO_CAUSE for stop in result.stops)


@BOTH
def test_a_link_that_flaps_ends_no_job(rule: Rule) -> None:
    flaps = ControlFault(20 * MS, FaultKind.FLAPPING_LINK, 0, 100 * MS, amount=3 * MS)
    result = run(config(rule, flaps))
    assert result.marks["a link was back, and went again"] >= 8
    assert result.marks["a link went down under an operation"]
    assert "a job failed" not in result.marks
    assert cause(result) == "flapping link"


@BOTH
def test_a_straggler_is_waited_for_and_others_get_its_turn(rule: Rule) -> None:
    slow = ControlFault(20 * MS, FaultKind.SLOW_HOST, 1, 150 * MS, amount=100)
    result = run(config(rule, slow, turn_operations=0))
    assert result.marks["a straggler was waited for"]
    assert result.marks["a straggler's turn was ended"]
    assert "a job failed" not in result.marks
    assert cause(result) == "slow host"


@EITHER_WAY
def test_a_half_open_link_stalls_operations_and_no_rule(amount: int) -> None:
    half = ControlFault(20 * MS, FaultKind.HALF_OPEN_LINK, 0, 50 * MS, amount=amount)
    result = run(config("by-index", half))
    assert result.marks["a link was half open under an operation"]
    assert result.marks["a chain waited for a link"]
    assert cause(result) == "half-open link"


@EITHER_WAY
def test_a_half_open_session_is_found_by_its_keep_alive(amount: int) -> None:
    """Whichever direction is dead: no heartbeat is said to have come. Until then the seat is lost."""
    half = ControlFault(20 * MS, FaultKind.HALF_OPEN_SESSION, 0, 150 * MS, amount=amount)
    result = run(config("by-index", half, keepalive_ns=20 * MS))
    assert result.marks["a half-open session was found by its keep-alive"] == 1
    assert "a job failed" not in result.marks
    assert ("a seat was lost by a half-open session" in result.marks) == (amount == 0)


def test_without_a_keep_alive_a_half_open_session_ends_the_job() -> None:
    half = ControlFault(20 * MS, FaultKind.HALF_OPEN_SESSION, 0, 150 * MS)
    result = run(config("by-index", half))
    assert result.marks["a job failed because a host was silent"]
    assert result.marks["a job was submitted again"] == 1
    assert "a half-open session was found by its keep-alive" not in result.marks


def test_a_session_that_is_whole_is_not_made_anew() -> None:
    result = run(config(keepalive_ns=20 * MS))
    assert "sharing: in doubt" not in result.marks


@BOTH
def test_a_rack_without_power_gives_its_turn_to_others_and_comes_back(rule: Rule) -> None:
    """The switch lends its slots on until their lease; the job is submitted again, for what is left."""
    power = ControlFault(
        0, FaultKind.RACK_POWER, 0, 60 * MS, moment="an operation by the switches", occurrence=9
    )
    result = run(config(rule, power, turn_operations=0, slice_ns=30 * MS))
    assert result.marks["a rack lost its power under a turn"] == 1
    assert result.marks["a turn moved from a rack without power"]
    assert result.marks["a job was submitted again"] == 1
    assert result.operations_done < 2 * (200 + 400) + 2 * 4
    assert cause(result) == "rack without power"


def test_a_job_that_failed_is_over_where_nobody_submits_it_again() -> None:
    power = ControlFault(20 * MS, FaultKind.RACK_POWER, 0, 60 * MS)
    result = ControlWorld(config("by-index", power, again_ns=-1)).run()
    assert result.violation is None
    assert (result.marks["a job failed"], result.marks["a job ended"]) == (1, 1)


# --- clocks


@BOTH
@pytest.mark.parametrize("ppm", [-DRIFT_MAX_PPM, DRIFT_MAX_PPM])
def test_clocks_that_drift_change_nothing_that_was_agreed_upon(rule: Rule, ppm: int) -> None:
    """The controller's runs the other way."""
    drifts = tuple(
        ControlFault(0, FaultKind.CLOCK_DRIFT, node, 200 * MS, amount=ppm if node else -ppm)
        for node in range(7)
    )
    result = run(config(rule, *drifts))
    assert result.marks["fault: clock drift"] == 7
    assert "a job failed" not in result.marks
    assert all(stop.kind == NO_CAUSE for stop in result.stops)


def test_no_clock_drifts_by_more_than_is_drawn() -> None:
    with pytest.raises(ConfigError, match="drift"):
        config("by-index", ControlFault(0, FaultKind.CLOCK_DRIFT, 0, MS, amount=DRIFT_MAX_PPM + 1))


def machine(started: Callable[[Machine[ControlWorld]], None]) -> Machine[ControlWorld]:
    """A machine of a world in which nothing else is."""
    one: Machine[ControlWorld] = Machine(ControlWorld(config()), 99, "clock")
    one.start()
    started(one)
    return one


@pytest.mark.parametrize("ppm", [-300, 0, 300])
def test_a_timer_is_due_by_the_clock_of_its_machine(ppm: int) -> None:
    fired: list[Instant] = []
    one = machine(lambda one: one.drift(ppm))
    due = Instant(one.now + 1000 * S)
    timer = Timer(one, lambda: None if fired else due, lambda: fired.append(one.now))
    timer.arm()
    while one.world.agenda.run_next():
        pass
    assert fired == [due]
    assert abs(one.world.agenda.now - 1000 * S + ppm * MS) < 400 * US


def test_a_clock_that_begins_to_drift_shows_what_it_did() -> None:
    one = machine(lambda one: one.drift(400))
    agenda = one.world.agenda
    agenda.at(10 * S, lambda _: None)
    agenda.run_next()
    before = one.now
    one.drift(-400)
    assert one.now == before
    one.drift(0)
    assert one.now == before


# --- stops


def test_a_stop_that_nothing_explains_is_a_broken_rule() -> None:
    """An operation takes twenty times what it would take by the chain, and nothing has befallen anybody."""
    late = job(0, hosts=(0, 1), operations=20, ina_ns=20 * MS, chain_ns=MS, stall_ns=50 * MS)
    other = job(1, hosts=(2, 3), operations=20)
    broken = ControlWorld(config(jobs=(late, other), stop_ns=MS)).run().violation
    assert broken is not None
    assert broken.rule == "no stop without a cause"
    assert NO_CAUSE in broken.evidence
