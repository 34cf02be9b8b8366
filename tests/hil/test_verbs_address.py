"""What pyverbs is told of a peer; it needs no device, but pyverbs, which the packages of the guest bring."""

from __future__ import annotations

import pytest

from inaproto.errors import Unsupported
from inaproto.ports import QpAddress, QpAttributes
from inaproto_adapters.verbs import library, queue_pair
from inaproto_adapters.verbs.paths import path_to
from tests.conftest import end_without

pytestmark = pytest.mark.hil


def test_packets_may_be_routed_and_have_the_traffic_class_asked_for() -> None:
    try:
        library.verbs("addr")
    except Unsupported as why:
        end_without("softroce", why)
    peer = QpAddress(bytes(6), b"\x0a\0\0\2", 7, 0)
    attributes = QpAttributes(traffic_class=104)
    handle = queue_pair.address_handle(path_to(None, peer), attributes, port=1, gid_index=3)
    assert (handle.hop_limit, handle.traffic_class, handle.sgid_index) == (64, 104, 3)
    assert "ffff:0a00:0002" in str(handle.dgid)
