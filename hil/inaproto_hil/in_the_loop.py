"""``inaproto hil``: hardware in the loop, or what stands for it here."""

from __future__ import annotations

from inaproto_hil.bench import LazyGroup

hil = LazyGroup(
    commands_at={
        "softroce": (
            "inaproto_hil.softroce.command:softroce",
            "All-reduces of kernel RoCE hosts, summed by the switch daemon.",
        ),
        "accelerator": (
            "inaproto_hil.conformance.command:accelerator",
            "Try every rule of the protocol at an accelerator, and say which does not hold, with the frame.",
        ),
    },
    name="hil",
    help="Hardware in the loop: real RoCE hosts, or a kernel's, through the switch; boards on the bench.",
)
