"""What a collective takes, and what a vote says (docs/protocol.md 9.8)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.host.collective_terms import CollectiveTerms, counted, digest_of, vote_on, words_of
from inaproto.core.host.operations import VOTE, Operation
from inaproto.core.plan.reduce_to_all import reduce_to_all
from inaproto.errors import LocalMisuse
from inaproto.units import OpIndex
from inaproto.wire.ina_header import Dtype, Op

TERMS = CollectiveTerms("sharp", frozenset({Dtype.F32, Dtype.I32}), frozenset({Op.SUM}), 64, 4096)


def operation(nbytes: int = 64, dtype: Dtype = Dtype.F32, op: Op = Op.SUM) -> Operation:
    return Operation(OpIndex(7), dtype, op, nbytes, signature=99)


def test_terms_are_told_as_a_text() -> None:
    assert str(TERMS) == "sharp 0,1 0 64 4096"
    assert CollectiveTerms.of(str(TERMS)) == TERMS
    several = CollectiveTerms("sharp", TERMS.dtypes, frozenset({Op.SUM, Op.MAX}), 64, 4096)
    assert CollectiveTerms.of(str(several)) == several


@pytest.mark.parametrize(
    "text", ["", "sharp 0 0 1", "Sharp 0 0 1 1", "sharp 9 0 1 1", "sharp 0, 0 1 1", "s 0 0 x 1"]
)
def test_what_are_no_terms(text: str) -> None:
    with pytest.raises(LocalMisuse, match=f"^{text!r} are no terms of a collective$"):
        CollectiveTerms.of(text)


def test_terms_that_no_message_holds() -> None:
    with pytest.raises(LocalMisuse, match="no terms"):
        CollectiveTerms("sharp", frozenset(), frozenset({Op.SUM}), 0, 1)


@pytest.mark.parametrize(
    ("asked", "takes"),
    [
        (operation(), True),
        (operation(4096), True),
        (operation(60), False),
        (operation(4100), False),
        (operation(dtype=Dtype.F16), False),
        (operation(op=Op.MAX), False),
    ],
)
def test_what_is_taken(asked: Operation, takes: bool) -> None:
    assert TERMS.take(asked) is takes


def test_nothing_is_never_taken() -> None:
    terms = CollectiveTerms("sharp", TERMS.dtypes, TERMS.ops, 0, 1)
    assert not terms.take(operation(0))
    assert terms.take(operation(1))


def test_a_vote_has_the_digest_of_its_operation() -> None:
    vote = vote_on(operation())
    assert (vote.index, vote.dtype, vote.op, vote.nbytes) == (VOTE | 7, Dtype.I32, Op.MIN, 12)
    assert vote.signature == 99


@given(st.lists(st.tuples(st.integers(-5, 2**31 - 1), st.booleans()), min_size=1, max_size=5))
def test_the_sum_of_votes_is_the_least_and_the_most_and_who_leaves(votes: list[tuple[int, bool]]) -> None:
    parts = [np.frombuffer(bytearray(words_of(said, stays=stays)), np.uint8) for said, stays in votes]
    reduce_to_all(Dtype.I32, Op.MIN, parts, parts)
    said, stay = zip(*votes, strict=True)
    assert counted(parts[0].tobytes()) == (min(said), max(said), all(stay))


def test_what_is_no_vote() -> None:
    with pytest.raises(LocalMisuse, match="a vote of 16 bytes"):
        counted(bytes(16))


def test_a_digest_is_one_that_can_be_said() -> None:
    assert digest_of(b"123456789") == 0xCBF43926 >> 1
    assert {digest_of(bytes([one])) >> 31 for one in range(256)} == {0}
    assert digest_of(b"ab") != digest_of(b"ba")
