"""Peers that are no dependencies, for tests: one that needs them ends with the reason where they are not."""

from __future__ import annotations

from inaproto.errors import Unsupported
from inaproto_hil.bench.peers.tools import Tools, default_environment
from tests.conftest import end_without


def tools_with(peer: str) -> Tools:
    """``"gloo"`` or ``"mpi"``; ends the test with the reason where it cannot be had."""
    tools = Tools(default_environment() / "bin" / "python")
    tools.look([peer])
    if peer in tools.lacks:
        end_without(peer, Unsupported(peer, tools.lacks[peer]))
    return tools
