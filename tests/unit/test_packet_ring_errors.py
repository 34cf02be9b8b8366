"""What a packet socket says of its interface, between two looks at the ring."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from inaproto_adapters.frames.packet_ring import ReceiveRing


def receiving(*errors: int) -> Callable[[], int]:
    """Fails so many times, then gives what the socket holds."""
    left = list(errors)

    def receive() -> int:
        if left:
            raise OSError(left.pop(0), "as told")
        return 64

    return receive


@pytest.mark.parametrize("errors", [(), (errno.ENETDOWN,), (errno.ENETDOWN, errno.ENETDOWN, errno.ENODEV)])
def test_what_the_socket_holds_is_had_however_often_the_link_went_down(errors: tuple[int, ...]) -> None:
    """A link that flaps: the second error ended the daemon."""
    ring = ReceiveRing.__new__(ReceiveRing)  # no socket, which only root may have
    ring.heard_error = False
    assert ring._despite_error(receiving(*errors)) == 64
    assert ring.heard_error == bool(errors)


def test_an_error_that_is_not_of_the_interface_is_told() -> None:
    ring = ReceiveRing.__new__(ReceiveRing)
    ring.heard_error = False
    with pytest.raises(OSError, match="as told"):
        ring._despite_error(receiving(errno.EIO))
