"""``inaproto bench``: how fast the parts are, and whether what they compute is right.

A figure without configuration and machine says nothing: each report carries both, as JSON beside
the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

import click

from inaproto.option_types import WholeGroup


class LazyGroup(WholeGroup):
    """A group whose commands are imported when they are called: lists of commands stay fast."""

    def __init__(
        self,
        *,
        commands_at: Mapping[str, tuple[str, str]],
        name: str,
        help: str,
        short_help: str | None = None,
    ) -> None:
        """``commands_at``: by name, ``module:attribute`` and the command's short help."""
        super().__init__(name=name, short_help=short_help, help=help)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_at:
            return None
        module, _, attribute = self._commands_at[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), cmd_name
        return command

    def rows(self, ctx: click.Context, names: Iterable[str]) -> list[tuple[str, str]]:
        return [(name, self._commands_at[name][1]) for name in names]


bench = LazyGroup(
    commands_at={
        "accelerator": (
            "inaproto_hil.bench.accelerator_command:accelerator",
            "Time the accelerator core alone against a per-packet loop.",
        ),
        "allreduce": (
            "inaproto_hil.bench.allreduce.command:allreduce",
            "All-reduces through a switch and host daemons on this machine, every element checked.",
        ),
        "congestion": (
            "inaproto_hil.bench.congestion.command:congestion",
            "Say what congestion control makes of a ring through a switch, and what the ring does to others.",
        ),
        "controller": (
            "inaproto_hil.bench.controller.command:controller_bench",
            "Measure a controller whose cluster has many hosts.",
        ),
        "decision": (
            "inaproto_hil.bench.decision:decision",
            "Time what a host pays to decide for one operation: INA or the fallback.",
        ),
        "migration": (
            "inaproto_hil.bench.migration:migration_bench",
            "Move running jobs between two trees, and measure what that takes.",
        ),
        "pairs": (
            "inaproto_hil.bench.pairs:pairs_bench",
            "Two jobs share one slot pool: their INA efficiency score, and what the simulator predicts.",
        ),
        "paring-live": (
            "inaproto_hil.bench.paring_live.command:paring_live",
            (
                "Place drawn jobs on an irregular network of switch daemons by PARING, "
                "and count what its links carry."
            ),
        ),
        "peers": (
            "inaproto_hil.bench.peers.command:peers_bench",
            "All-reduces by inaproto's daemons beside those of gloo and Open MPI, in turns.",
        ),
        "plan": (
            "inaproto_hil.bench.plan:plan_bench",
            "Time PARING's planners on one request: fast mode, and the printed algorithm.",
        ),
        "priorities": (
            "inaproto_hil.bench.priorities:priorities_bench",
            "Train models of different priority over links that are too slow for all.",
        ),
        "sharing": (
            "inaproto_hil.bench.sharing:sharing_bench",
            (
                "The paper's rule of equal indices and ours by index: "
                "aborted rounds, and operations that locks stall."
            ),
        ),
        "sharp": (
            "inaproto_hil.bench.sharp.command:sharp_bench",
            "Time all-reduces through the SHARP adapter beside a bare C loop on the same library.",
        ),
        "sharp-moves": (
            "inaproto_hil.bench.sharp.moves:sharp_moves",
            "Time how two running jobs swap their trees in a double of SHARP, again and again.",
        ),
        "simulate": (
            "inaproto_hil.bench.simulate:simulate_bench",
            "CPU seconds of simulated clusters, on one core.",
        ),
        "simulate-growth": (
            "inaproto_hil.bench.simulate_growth:simulate_growth",
            "Measure how CPU time and memory of a SCENARIO grow with its hosts, and with its jobs.",
        ),
        "training": (
            "inaproto_hil.bench.training.command:training_bench",
            "How long a training step of an unchanged PyTorch script takes: by gloo, and by inaproto.",
        ),
        "verbs": (
            "inaproto_hil.bench.verbs.command:verbs_bench",
            "Python of a host daemon for a message on a RoCE card, over a device that does nothing.",
        ),
        "yardsticks": (
            "inaproto_hil.bench.yardsticks:yardsticks",
            "Placement, trees and schedules of small clusters, against exact solutions.",
        ),
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
