"""Network namespaces for tests: one that needs them ends with the reason where there are none."""

from __future__ import annotations

from inaproto.errors import Unsupported
from inaproto_hil.rigs.namespaces import Namespace, check_namespaces, join, namespaces
from tests.conftest import end_without

__all__ = ["Namespace", "join", "namespaces", "require_namespaces"]


def require_namespaces() -> None:
    """An async test would lose the reason: it has a fixture for it."""
    try:
        check_namespaces()
    except Unsupported as why:
        end_without("namespaces", why)
