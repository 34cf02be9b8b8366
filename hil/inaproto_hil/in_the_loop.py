"""``inaproto hil``: hardware in the loop, or what stands for it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto_hil.bench import LazyGroup

if TYPE_CHECKING:
    import click


def _softroce() -> click.Command:
    from inaproto_hil.softroce.command import softroce

    return softroce


def _accelerator() -> click.Command:
    from inaproto_hil.conformance.command import accelerator

    return accelerator


hil = LazyGroup(
    commands_at={"softroce": _softroce, "accelerator": _accelerator},
    name="hil",
    help="Hardware in the loop: real RoCE hosts, or a kernel's, through the switch; boards on the bench.",
)
