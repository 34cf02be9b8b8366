"""What a migration is configured with has bounds, and what it took is added up (MINA IV-A)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.migration.events import JobView, Migration, MigrationConfig, Phase, Tree
from inaproto.errors import LocalMisuse
from inaproto.wire.messages.slots import Lease

LEAST = MigrationConfig(
    ("a", "b"),
    (0, 0),
    jobs_max=1,
    resend_ns=1,
    tries_max=1,
    audit_ns=1,
    backoff_ns=1,
    backoff_max_ns=1,
    jitter_ns=(0,),
    measures_max=1,
)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("switches", (), r"switches must be named, each once: \(\)"),
        ("switches", ("a", "a"), "switches must be named, each once"),
        ("slots", (0,), "slots: of each of 2 switches, not"),
        ("slots", (0, -1), "slots: of each of 2 switches, not"),
        *(
            (name, 0, f"{name} must be at least 1, not 0")
            for name in ("jobs_max", "resend_ns", "tries_max", "audit_ns", "backoff_ns", "measures_max")
        ),
        ("backoff_max_ns", 0, "back-off: the longest must be no shorter than the first"),
        ("jitter_ns", (), "^back-off: .* jitter not negative$"),
        ("jitter_ns", (0, -1), "back-off: .* jitter not negative"),
    ],
)
def test_a_number_that_is_too_small_is_refused(field: str, value: object, words: str) -> None:
    assert replace(LEAST) == LEAST
    assert replace(LEAST, slots=()).slots == ()
    with pytest.raises(LocalMisuse, match=words):
        replace(LEAST, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("switches", [(), ("b", "a"), ("a", "a")])
def test_switches_of_a_tree_ascend(switches: tuple[str, ...]) -> None:
    with pytest.raises(LocalMisuse, match="tree 7: its switches must be ascending"):
        Tree(7, switches)


def test_without_ina_is_a_job_from_when_it_has_drained() -> None:
    took = Migration("j", 1, 2, drain_ns=1, release_ns=10, barrier_ns=100, acquire_ns=1000, refusals=0)
    assert (took.downtime_ns, took.total_ns) == (1110, 1111)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_job_holds_the_slots_of_its_target_while_it_is_not_giving_them_up(phase: Phase) -> None:
    held = JobView("j", phase, Lease("j", 7, 1), Tree(7, ("a",)), 0)
    assert held.is_held == (phase in (Phase.ADOPTING, Phase.STABLE))
    for changes in ({"lease": None}, {"target": None}, {"target": Tree(8, ("a",))}):
        assert not replace(held, **changes).is_held
