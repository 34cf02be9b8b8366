"""What share of all-reduces would go by INA, from how long they were seen to take."""

from __future__ import annotations

import pytest

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto_hil.evaluation.shared_pool.prediction import Seen, plain_seconds, predicted_ina_share

TRACE = ModelTrace("drawn", 0.1, (0.05, 0.06, 0.07, 0.08), (100, 200, 100, 400))
PLAIN = {100: 0.02, 200: 0.02, 400: 0.04}


def test_an_all_reduce_takes_from_when_the_one_before_has_ended() -> None:
    seen = [
        Seen(100, "chain", 1.0, 1.5),
        Seen(200, "chain", 1.1, 1.7),
        Seen(200, "switch", 1.2, 2.0),
        Seen(100, "chain", 3.0, 3.1),
    ]
    found = plain_seconds(seen, "chain")
    assert found == {100: pytest.approx(0.3), 200: pytest.approx(0.2)}
    assert plain_seconds(seen, "switch") == {200: pytest.approx(0.3)}


def test_a_job_alone_has_all_and_jobs_that_are_always_busy_have_a_part_each() -> None:
    def share(*jobs: tuple[ModelTrace, dict[int, float]]) -> float | None:
        named = {str(number): job for number, job in enumerate(jobs)}
        return predicted_ina_share(named, ina_ratio=2.0, round_trip=1e-3)

    alone = share((TRACE, PLAIN))
    assert alone is not None
    assert alone > 0.95
    busy = ModelTrace("busy", 0.01, (0.0, 0.0, 0.0, 0.0), TRACE.nbytes)
    many = share(*[(busy, PLAIN)] * 4)
    assert many is not None
    assert many < 0.5, "one at a time"
    assert share((TRACE, {100: 0.02})) is None, "not all sizes were seen"
