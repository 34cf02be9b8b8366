"""Every decoder under seeded mutation: a few thousand broken records each, in every run of the suite.

``tests/fuzz/run.py`` does the same for as long as one likes, guided by coverage.
"""

from __future__ import annotations

import pytest

from inaproto.errors import DecodeError
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS, Target

SEED = "inaproto"
INPUTS = 3_000


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_corpus_is_valid(target: Target) -> None:
    refused = [data.hex() for data in target.corpus if not target.accepts(data)]
    not_roce = ("roce_packet", "icrc")  # among the frames there is an ARP request
    assert len(refused) == (1 if target.name in not_roce else 0), refused


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_nothing_but_decode_errors(target: Target) -> None:
    mutator = Mutator(target.corpus, f"{SEED}/{target.name}")
    outcomes = {True: 0, False: 0}
    for index in range(INPUTS):
        data = mutator.next_input()
        try:
            outcomes[target.accepts(data)] += 1
        except Exception as error:
            error.add_note(f"input {index} of seed {SEED}/{target.name}: {data.hex()}")
            raise
    assert min(outcomes.values()) > INPUTS // 100, f"mutation does not reach both outcomes: {outcomes}"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_prefix(target: Target) -> None:
    for data in target.corpus:
        for length in range(min(len(data), 200)):
            target.accepts(data[:length])


def test_mutation_finds_a_planted_fault() -> None:
    """A decoder that trusts a length byte does not survive."""

    def trusting(data: bytes) -> None:
        if len(data) < 2:
            raise DecodeError("planted", "too short")
        _ = data[data[0]]

    target = Target("planted", (b"\x02abc",), trusting)
    mutator = Mutator(target.corpus, SEED)
    inputs = (mutator.next_input() for _ in range(INPUTS))
    with pytest.raises(IndexError):
        list(map(target.accepts, inputs))


def test_mutation_is_a_function_of_the_seed() -> None:
    def inputs(seed: str) -> list[bytes]:
        mutator = Mutator(TARGETS["roce_packet"].corpus, seed)
        return [mutator.next_input() for _ in range(100)]

    assert inputs("a") == inputs("a")
    assert inputs("a") != inputs("b")
