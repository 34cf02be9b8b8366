"""The guest of the Soft-RoCE bench: one image for all tests, or a typed reason why there is none."""

from __future__ import annotations

import pytest

from inaproto.errors import Unsupported
from inaproto_hil.softroce.image import Image, open_image
from tests.conftest import end_without


@pytest.fixture(scope="session")
def softroce() -> Image:
    """Required where the packages can be installed: ``.ci/run`` runs ``make hil`` with INAPROTO_REQUIRE."""
    try:
        return open_image(print)
    except Unsupported as why:
        end_without("softroce", why)
