"""Network namespaces for tests: one that needs them ends with the reason where there are none."""

from __future__ import annotations

from inaproto.errors import Unsupported
from inaproto_adapters.frames import open_xdp_link
from inaproto_hil.rigs.namespaces import Namespace, check_namespaces, join, namespaces
from tests.conftest import end_without

__all__ = ["Namespace", "join", "namespaces", "require_namespaces", "require_xdp"]


def require_namespaces() -> None:
    """An async test would lose the reason: it has a fixture for it."""
    try:
        check_namespaces()
    except Unsupported as why:
        end_without("namespaces", why)


def require_xdp() -> None:
    """For AF_XDP ports in namespaces, which must be there already."""
    with namespaces("probe") as (here,), here.entered():
        join(here, "left", here, "right")
        try:
            open_xdp_link("left").require()
        except Unsupported as why:
            end_without("xdp", why)
