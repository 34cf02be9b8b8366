"""``inaproto bench``: how fast the parts are, and whether what they compute is right.

A figure without configuration and machine says nothing: each report carries both, as JSON beside
the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from inaproto.option_types import WholeGroup

if TYPE_CHECKING:
    from collections.abc import Callable


class LazyGroup(WholeGroup):
    """A group whose commands are imported when they are named: ``inaproto --help`` stays fast."""

    def __init__(
        self,
        *,
        commands_at: dict[str, Callable[[], click.Command]],
        name: str,
        help: str,
        short_help: str | None = None,
    ) -> None:
        super().__init__(name=name, short_help=short_help, help=help)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        load = self._commands_at.get(cmd_name)
        return load() if load is not None else None


def _accelerator() -> click.Command:
    from inaproto_hil.bench.accelerator_command import accelerator

    return accelerator


def _allreduce() -> click.Command:
    from inaproto_hil.bench.allreduce.command import allreduce

    return allreduce


def _congestion() -> click.Command:
    from inaproto_hil.bench.congestion.command import congestion

    return congestion


def _controller() -> click.Command:
    from inaproto_hil.bench.controller.command import controller_bench

    return controller_bench


def _sharing() -> click.Command:
    from inaproto_hil.bench.sharing import sharing_bench

    return sharing_bench


def _pairs() -> click.Command:
    from inaproto_hil.bench.pairs import pairs_bench

    return pairs_bench


def _migration() -> click.Command:
    from inaproto_hil.bench.migration import migration_bench

    return migration_bench


def _decision() -> click.Command:
    from inaproto_hil.bench.decision import decision

    return decision


def _paring_live() -> click.Command:
    from inaproto_hil.bench.paring_live.command import paring_live

    return paring_live


def _plan() -> click.Command:
    from inaproto_hil.bench.plan import plan_bench

    return plan_bench


def _peers() -> click.Command:
    from inaproto_hil.bench.peers.command import peers_bench

    return peers_bench


def _priorities() -> click.Command:
    from inaproto_hil.bench.priorities import priorities_bench

    return priorities_bench


def _sharp() -> click.Command:
    from inaproto_hil.bench.sharp.command import sharp_bench

    return sharp_bench


def _sharp_moves() -> click.Command:
    from inaproto_hil.bench.sharp.moves import sharp_moves

    return sharp_moves


def _simulate() -> click.Command:
    from inaproto_hil.bench.simulate import simulate_bench

    return simulate_bench


def _simulate_growth() -> click.Command:
    from inaproto_hil.bench.simulate_growth import simulate_growth

    return simulate_growth


def _training() -> click.Command:
    from inaproto_hil.bench.training.command import training_bench

    return training_bench


def _verbs() -> click.Command:
    from inaproto_hil.bench.verbs.command import verbs_bench

    return verbs_bench


def _yardsticks() -> click.Command:
    from inaproto_hil.bench.yardsticks import yardsticks

    return yardsticks


bench = LazyGroup(
    commands_at={
        "accelerator": _accelerator,
        "allreduce": _allreduce,
        "congestion": _congestion,
        "controller": _controller,
        "decision": _decision,
        "migration": _migration,
        "pairs": _pairs,
        "paring-live": _paring_live,
        "peers": _peers,
        "plan": _plan,
        "priorities": _priorities,
        "sharing": _sharing,
        "sharp": _sharp,
        "sharp-moves": _sharp_moves,
        "simulate": _simulate,
        "simulate-growth": _simulate_growth,
        "training": _training,
        "verbs": _verbs,
        "yardsticks": _yardsticks,
    },
    name="bench",
    short_help="Measure all-reduces, beside other systems too, and the parts that they are made of.",
    help="Measure the accelerator core, all-reduces through the daemons or simulated switches, those beside "
    "other systems, the rules by which jobs share switches, what two of them gain by it, what a host decides "
    "for an operation, PARING's planners, models of different priority on slow links, simulated clusters "
    "and how their cost grows, steps of a PyTorch script, what a host does for a message on a RoCE card, "
    "a controller of a thousand hosts, rings that share links with other flows under congestion control, "
    "what the SHARP adapter costs and how long its trees take to move, "
    "or how far planning is from the best there is.",
)
