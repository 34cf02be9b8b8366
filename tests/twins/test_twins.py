"""The comparison of kernels with their twins finds worlds that differ, and says which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inaproto.sim.campaign.kinds import WorldKind
from tests.twins import run


@pytest.mark.parametrize("world", [WorldKind.SINGLE, WorldKind.MACHINES])
def test_a_world_is_the_same_by_kernels_and_by_twins(
    use_kernels: Callable[[str], None], world: WorldKind
) -> None:
    use_kernels("compiled")
    assert run.compared(world, 3, 4) == run.Outcome(world, 1, [], [])


def test_a_world_that_differed_once(use_kernels: Callable[[str], None]) -> None:
    """A bit of a source address was another one: it parted the packets of a message for the twins alone."""
    use_kernels("compiled")
    assert run.compared(WorldKind.RECOVERY, 581, 582) == run.Outcome(WorldKind.RECOVERY, 1, [], [])


def test_what_differs_or_breaks_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(world: WorldKind, seed: int, name: str) -> tuple[str, bool]:
        return f"{seed} {name if seed == 5 else ''}", seed == 6 and name == "numpy"

    monkeypatch.setattr(run, "digest", digest)
    assert run.compared(WorldKind.RACKS, 4, 8) == run.Outcome(WorldKind.RACKS, 4, [5], [6])
