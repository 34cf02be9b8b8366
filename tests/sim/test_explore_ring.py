"""Hosts and accelerator, every interleaving: what the product promises, and what readings of the paper break.

Sizes are small enough for every day; ``inaproto explore`` runs larger ones. The claims are those of the
protocol's text on NetReduce section 3.2; ``tests/paper`` has the same on an abstract model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inaproto.core.host import message_window
from inaproto.core.host.message_window import MessageWindow
from inaproto.core.plan.reduce import reduce_into
from inaproto.core.rdma import requester as rc_requester
from inaproto.core.rdma.responder import ResponderConfig
from inaproto.core.switch import region
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import ConfigError
from inaproto.sim.explore.engine import Counterexample, Kind, Verdict, explore
from inaproto.sim.explore.ring import live_rank
from inaproto.sim.explore.ring.variants import PRODUCT, VARIANTS, ring_config, ring_world
from inaproto.units import PSN_MASK

STATES_MAX = 400_000


def search(variant: str = PRODUCT, *, states_max: int = STATES_MAX, **options: Any) -> Verdict:
    return explore(ring_world(variant, ring_config(variant, **options)), states_max=states_max)


def broken(variant: str = PRODUCT, *, states_max: int = STATES_MAX, **options: Any) -> Counterexample:
    found = search(variant, states_max=states_max, **options).counterexample
    assert found is not None, f"{variant} with {options} holds"
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"ranks": 2, "window": 1, "length": 2, "losses": 1},
        {"ranks": 2, "window": 1, "length": 1, "losses": 2, "duplicates": 1},
        {"ranks": 2, "window": 1, "length": 2, "losses": 1, "last_packets": 1, "ack_every": 1},
        {"ranks": 2, "window": 1, "length": 3, "losses": 1, "messages": 2, "transport_window": 3},
        {"ranks": 2, "window": 2, "length": 1, "losses": 1, "messages": 6},
        {"ranks": 3, "window": 1, "length": 1, "losses": 1},
        {"ranks": 3, "window": 2, "length": 1, "losses": 1, "messages": 3},
        {"ranks": 2, "window": 1, "length": 1, "reorder": True, "losses": 1},
        {"ranks": 2, "window": 1, "length": 1, "early_timers": 1, "losses": 1},
    ],
    ids=str,
)
def test_the_product_holds(options: dict[str, Any]) -> None:
    verdict = search(**options)
    assert verdict.counterexample is None
    assert verdict.finished


def test_psns_and_slots_are_used_again_by_default() -> None:
    config = ring_config(ranks=3, window=2, length=1)
    assert config.packets > 1 << config.psn_bits
    assert config.messages >= 2 * config.window + 2


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        (PRODUCT, {"length": 1, "losses": 1, "messages": 4}),
        (PRODUCT, {"length": 1, "losses": 1, "duplicates": 1, "messages": 3}),
        (PRODUCT, {"length": 2, "losses": 1, "messages": 3}),
        (PRODUCT, {"ranks": 3, "length": 1, "losses": 1, "messages": 2}),
        (PRODUCT, {"length": 1, "losses": 0, "early_timers": 1, "messages": 4}),
        (PRODUCT, {"length": 1, "losses": 0, "reorder": True, "messages": 4}),
        ("free-whole-slot", {"spare_acks": True, "messages": 3}),
        ("free-own-bit", {"messages": 4}),
        ("free-own-bit", {"ranks": 3, "losses": 1, "spare_acks": True, "messages": 2}),
        ("free-own-bit", {"reorder": True}),
        ("free-by-tenant", {"losses": 1, "messages": 4}),
    ],
    ids=str,
)
def test_reductions_change_no_verdict(variant: str, options: dict[str, Any]) -> None:
    full = search(variant, reduced=False, **options)
    reduced = search(variant, **options)
    if full.counterexample is None:
        assert reduced.counterexample is None
        assert reduced.states < full.states
    else:
        assert reduced.counterexample is not None
        assert reduced.counterexample.kind is full.counterexample.kind
        assert len(full.counterexample.run) <= len(reduced.counterexample.run)


# -- readings of the paper -------------------------------------------------------------------------


def test_freeing_the_whole_slot_stops_the_ring_when_a_result_is_lost() -> None:
    found = broken("free-whole-slot", spare_acks=True, messages=3, reduced=False)
    assert found.kind is Kind.STUCK
    assert sum("LOST" in line for line in found.run) == 1


def test_freeing_the_own_bit_holds_for_two_ranks_while_acknowledgements_are_safe() -> None:
    assert search("free-own-bit", spare_acks=True).counterexample is None
    assert search("free-own-bit", spare_acks=True, length=2, losses=1).counterexample is None


def test_freeing_the_own_bit_gives_a_wrong_sum_when_an_acknowledgement_is_lost() -> None:
    """No path reorders anything: the resend of a message that all have passed leaves its bit behind."""
    found = broken("free-own-bit", losses=1, reduced=False)
    assert found.kind is Kind.BROKEN
    assert "wrong sum" in found.rule
    lost = [line for step in found.run for line in step.splitlines() if "LOST" in line]
    assert len(lost) == 1
    assert "ACK" in lost[0]


def test_freeing_the_own_bit_gives_a_wrong_sum_when_a_timer_expires_early() -> None:
    assert "wrong sum" in broken("free-own-bit", losses=0, early_timers=1).rule


def test_freeing_the_own_bit_stops_three_ranks_when_a_result_is_lost() -> None:
    """Those who had the result have freed their bits; the resend of one rank completes nothing."""
    found = broken("free-own-bit", ranks=3, losses=1, spare_acks=True, reduced=False)
    assert found.kind is Kind.STUCK
    lost = [line for step in found.run for line in step.splitlines() if "LOST" in line]
    assert len(lost) == 1
    assert "result" in lost[0]


def test_freeing_the_own_bit_gives_a_wrong_sum_when_a_duplicate_comes_late() -> None:
    found = broken("free-own-bit", reorder=True, reduced=False)
    assert "wrong sum" in found.rule
    assert any("late" in line for line in found.run)


@pytest.mark.parametrize("options", [{}, {"ranks": 3, "losses": 1}, {"reorder": True}], ids=str)
def test_freeing_by_tenant_holds(options: dict[str, Any]) -> None:
    assert search("free-by-tenant", **options).counterexample is None


def test_a_single_entry_stops_the_ring() -> None:
    found = broken("single-entry-lookup", transport_window=3, ack_every=1)
    assert found.kind is Kind.STUCK
    assert "\n".join(found.run).count("LOST") == 1


def test_a_single_entry_with_negative_offsets_stops_the_ring_too() -> None:
    """The specification's claim, refuted: it fails with messages of one length as well."""
    found = broken("single-entry-negative", spare_acks=True, states_max=600_000)
    assert found.kind is Kind.STUCK


# -- faults planted into the product ---------------------------------------------------------------


def test_a_window_one_too_wide_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MessageWindow.sendable

    def sendable(self: MessageWindow) -> Any:
        self._received += 1
        serials = right(self)
        self._received -= 1
        return serials

    monkeypatch.setattr(message_window.MessageWindow, "sendable", sendable)
    assert broken(length=1, losses=0).kind is Kind.BROKEN


def test_a_sum_without_the_last_rank_is_found(
    monkeypatch: pytest.MonkeyPatch, use_kernels: Callable[[str], None]
) -> None:
    use_kernels("numpy")

    def all_but_one(dtype: Any, op: Any, inputs: Any, out: Any) -> None:
        reduce_into(dtype, op, inputs[:-1], out)

    monkeypatch.setattr(region, "reduce_into", all_but_one)
    assert "takes a wrong sum as the result of message 0" in broken(length=1, losses=0).rule


def test_a_timer_that_resends_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rc_requester.RcRequester, "_retry", lambda self, now: [])
    found = broken(length=1, losses=1, messages=2)
    assert found.kind is Kind.STUCK
    assert search(length=1, losses=0, messages=2).counterexample is None


def test_psns_compared_without_their_wrap_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(**options: Any) -> ResponderConfig:
        return ResponderConfig(**{**options, "psn_mask": PSN_MASK})

    monkeypatch.setattr(live_rank, "ResponderConfig", wide)
    assert broken(length=1, losses=0).kind is Kind.STUCK


def test_an_accelerator_that_takes_over_too_soon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot whose tenant a rank still needs: N regions where there must be 2N."""
    monkeypatch.setattr(RingSpec, "regions", property(lambda spec: spec.window_messages))
    found = broken(length=1, losses=1)
    assert "lacks its result" in found.rule or found.kind is Kind.STUCK


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ranks": 1}, "ranks must be 2 to 8, not 1"),
        ({"window": 3}, "window must be a power of two"),
        ({"psn_bits": 3, "window": 4}, "psn_bits 3 is too narrow"),
        ({"psn_bits": 3, "reorder": True, "messages": 5, "length": 1}, "packets that come late"),
        ({"last_packets": 3}, "last_packets must be 0 to 2"),
        ({"losses": 9}, "losses must be 0 to 4"),
        ({"variant": "nonsense"}, "does not exist; there are product"),
    ],
)
def test_a_size_that_cannot_be_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ring_config(**options)


def test_each_variant_has_a_size_that_can_be() -> None:
    for name in VARIANTS:
        assert ring_config(name).packets >= 2
        assert ring_config(name, reorder=True).duplicates == 1
