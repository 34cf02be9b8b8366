"""Soft-RoCE bench: RoCE hosts of a real kernel in one small guest, and the switch daemon as their wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto_hil.bench import LazyGroup

if TYPE_CHECKING:
    import click


def _softroce() -> click.Command:
    from inaproto_hil.softroce.command import softroce

    return softroce


hil = LazyGroup(
    commands_at={"softroce": _softroce},
    name="hil",
    help="Hardware in the loop: real RoCE hosts, or a kernel's, through the switch.",
)
