"""What pyverbs is told of a peer; it needs no device, but pyverbs, which the packages of the guest bring."""

from __future__ import annotations

import pytest

from inaproto.errors import Unsupported
from inaproto_adapters.verbs import library, queue_pair
from tests.conftest import end_without

pytestmark = pytest.mark.hil


def test_packets_may_be_routed_and_have_the_traffic_class_asked_for() -> None:
    try:
        library.verbs("addr")
    except Unsupported as why:
        end_without("softroce", why)
    handle = queue_pair.address_handle(b"\x0a\0\0\2", 104, port=1, gid_index=3)
    assert (handle.hop_limit, handle.traffic_class, handle.sgid_index) == (64, 104, 3)
    assert "ffff:0a00:0002" in str(handle.dgid)
