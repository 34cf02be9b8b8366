"""One rank of the ring of hosts: what it does not believe."""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.core.host.operations import OperationFailed, RingBroken, SendCompleted, Submit
from inaproto.errors import Blame
from inaproto.wire.host_header import Kind
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.host_arrivals import FULL, NOW, kinds, operation
from tests.unit.ring_of_hosts import ACC, RES, arrival, engine, posted

# --- what it does not believe


WRONG = [
    {"rank": 1},
    {"op_index": 1},
    {"msg_id": 9},
    {"epoch": 4},
    {"ring_id": 8},
    {"key": 1},
    {"ring_size": 4},
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", Kind)
def test_a_message_with_any_wrong_header_field_breaks_the_ring(kind: Kind, wrong: dict[str, int]) -> None:
    it = engine(0)
    it.step(Submit(operation(nbytes=2 * FULL)), NOW)
    it.step(Submit(operation(1)), NOW)
    event = arrival(it, kind, 0 if kind is RES else 1, last=kind is ACC, **wrong)
    actions = it.step(event, NOW)
    assert kinds(actions) == [Blame, OperationFailed, OperationFailed, RingBroken]
    blame, broken = actions[0], actions[-1]
    assert isinstance(blame, Blame)
    assert isinstance(broken, RingBroken)
    assert (blame.peer, blame.rule) == ("rank 2", f"{kind.name.lower()} header")
    assert broken.code == "fabric_lost"
    assert broken.message.startswith(f"rank 0 of ring 7 got a wrong message ({blame}); the job cannot go on")


@pytest.mark.parametrize("kind", Kind)
def test_one_kind_is_not_taken_for_the_other(kind: Kind) -> None:
    it = engine(0)
    it.step(Submit(operation(nbytes=2 * FULL)), NOW)
    serial = 0 if kind is RES else 1
    imm = 2 * serial + (kind is RES)
    other = arrival(it, ACC if kind is RES else RES, serial, last=kind is ACC, msg_id=imm)
    blame = it.step(other._replace(imm=imm), NOW)[0]
    assert isinstance(blame, Blame)
    assert blame.rule == f"{kind.name.lower()} header"


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "called", [{"dtype": Dtype.F32}, {"op": Op.MAX}, {"flags": 0}, {"signature": 1}, {"msg_len": 1}]
)
def test_ranks_that_call_different_tensors_are_told_so(kind: Kind, called: dict[str, Any]) -> None:
    it = engine(2 if kind is ACC else 0)
    it.step(Submit(operation()), NOW)
    blame, failed, broken = it.step(arrival(it, kind, 0, **({"last": True} | called)), NOW)
    assert isinstance(blame, Blame)
    assert isinstance(failed, OperationFailed)
    assert isinstance(broken, RingBroken)
    assert blame.rule == "tensors differ"
    assert failed.code == broken.code == "tensor_mismatch"


@pytest.mark.parametrize(
    ("rank", "kind", "serial", "rule", "evidence"),
    [
        (1, ACC, 2, "accumulator outside the window", "accumulator 4 where 0 to 2 may come"),
        (1, RES, 2, "result outside the window", "result 5 where 1 to 3 may come"),
        (
            0,
            ACC,
            0,
            "accumulator at a rank to which it does not come",
            "accumulator 0 of the messages that begin at rank 0",
        ),
        (
            2,
            RES,
            0,
            "result at a rank to which it does not come",
            "result 1 of the messages that begin at rank 0",
        ),
        (
            1,
            RES,
            0,
            "result of a message not sent",
            "result 1 where 1 is due of the messages that begin at rank 0",
        ),
        (
            0,
            RES,
            2,
            "result outside the window",
            "result 5 where 1 to 3 may come",
        ),
    ],
)
def test_messages_that_cannot_come_now(rank: int, kind: Kind, serial: int, rule: str, evidence: str) -> None:
    it = engine(rank)
    assert it.step(arrival(it, kind, serial), NOW)[0] == Blame("predecessor", rule, evidence)


def test_a_result_of_a_message_that_waits_for_its_accumulators() -> None:
    it = engine(1)
    it.step(Submit(operation(nbytes=4 * FULL)), NOW)
    evidence = "result 1 where 1 is due of the messages that begin at rank 0"
    assert it.step(arrival(it, RES, 0), NOW)[0] == Blame(
        "predecessor", "result of a message not sent", evidence
    )


@pytest.mark.parametrize("kind", Kind)
def test_what_began_at_one_rank_comes_in_its_order(kind: Kind) -> None:
    """With two ranks and a window of four, two messages of each may come; here the second comes first."""
    it = engine(1 if kind is ACC else 0, 2, window_messages=4)
    it.step(Submit(operation(nbytes=4 * FULL)), NOW)
    name, due = kind.name.lower(), kind is RES
    evidence = f"{name} {4 + due} where {0 + due} is due of the messages that begin at rank 0"
    blame = Blame("predecessor", f"{name} out of order", evidence)
    assert it.step(arrival(it, kind, 2), NOW)[0] == blame


@pytest.mark.parametrize("kind", Kind)
def test_nothing_comes_twice(kind: Kind) -> None:
    it = engine(1 if kind is ACC else 0, 2, window_messages=4)
    first = arrival(it, kind, 0 if kind is ACC else 2)
    if kind is ACC:
        it.step(first, NOW)
    else:
        it.step(Submit(operation(nbytes=4 * FULL)), NOW)
        it.step(arrival(it, RES, 0), NOW)
        it.step(first, NOW)
    blame = it.step(first, NOW)[0]
    assert isinstance(blame, Blame)
    assert blame.rule == f"{kind.name.lower()} out of order"


def test_accumulators_come_a_window_after_those_that_were_added_to() -> None:
    """Although the ones between, which this rank starts, have not gone out: it waits for a result."""
    it = engine(1, 2)
    it.step(Submit(operation(nbytes=6 * FULL)), NOW)
    assert posted(it.step(arrival(it, ACC, 0), NOW)) == [1]
    assert it.step(arrival(it, ACC, 2), NOW) == [], "it waits for the header slot of result 0"
    blame = it.step(arrival(it, ACC, 4), NOW)[0]
    assert blame == Blame(
        "predecessor", "accumulator outside the window", "accumulator 8 where 4 to 6 may come"
    )


def test_ids_beyond_their_bits_are_none() -> None:
    it = engine(1, 2, id_bits=3)
    event = arrival(it, ACC, 0)
    blame = it.step(event._replace(imm=8), NOW)[0]
    assert isinstance(blame, Blame)
    assert blame.evidence == "accumulator 8 where 0 is due of the messages that begin at rank 0"
    it = engine(1, 2, id_bits=3)
    blame = it.step(arrival(it, ACC, 2), NOW)[0]
    assert isinstance(blame, Blame)
    assert blame.rule == "accumulator outside the window", "the upper half of the ids is not the lower one"


def test_completions_out_of_order_are_the_transports_fault() -> None:
    it = engine(0)
    rule = "send completed out of order"
    assert it.step(SendCompleted(0), NOW)[0] == Blame("transport", rule, "message 0 where none is due")
    it = engine(0)
    it.step(Submit(operation()), NOW)
    assert it.step(SendCompleted(1), NOW)[0] == Blame("transport", rule, "message 1 where 0 is due")
