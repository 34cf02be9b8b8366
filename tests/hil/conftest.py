"""The guest of the Soft-RoCE bench: one image for all tests, or a typed reason why there is none."""

from __future__ import annotations

import pytest

from inaproto.errors import Unsupported
from inaproto_hil.softroce.image import Image, open_image
from tests.conftest import REQUIRED


@pytest.fixture(scope="session")
def softroce() -> Image:
    """``INAPROTO_REQUIRE=softroce`` lets tests fail where they would be skipped."""
    try:
        return open_image(print)
    except Unsupported as why:
        if "softroce" in REQUIRED:
            raise
        pytest.skip(str(why))  # noqa: TID251  the one place of these tests
