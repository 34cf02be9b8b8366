"""Training by processes in the guest, each at a host daemon on a kernel RoCE device, summed by the switch."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.digits import softroce as act
from examples.digits.demo import Config
from inaproto_hil.softroce.guest import guest_failure_alone
from inaproto_hil.softroce.image import Image
from tests.hil import HANG_S

pytestmark = [pytest.mark.hil, pytest.mark.timeout(HANG_S)]

EPOCHS, STEPS_PER_EPOCH = 8, 22


async def test_four_processes_train_to_the_weights_of_one(softroce: Image, tmp_path: Path) -> None:
    """The first act of the demo, shorter: `inaproto demo softroce` plays all of it."""
    config = Config(seed=1, ranks=4, epochs=EPOCHS, batch=64, weather="", timeout_s=600.0)
    with guest_failure_alone():
        result = await act.train(softroce, config, tmp_path, print)
    assert result.identical
    assert len(result.ranks) == 4
    assert all(len(rank["steps"]) == EPOCHS * STEPS_PER_EPOCH for rank in result.ranks)
    assert result.ranks[0]["accuracy"][-1] > 0.9
    last = result.wire[-1]
    assert last.frames > EPOCHS * STEPS_PER_EPOCH * 4
    assert last.frames_lost == 0
