"""What ``inaproto explore --help`` says below the options: examples, assumptions, variants."""

from __future__ import annotations

import textwrap
from typing import Final

from inaproto.sim.explore.ring.variants import VARIANTS, Variant, ring_config
from inaproto_hil.explore.worlds import WORLDS

_EXAMPLES: Final = """
\b
Examples, each a few seconds:
  inaproto explore
  inaproto explore --ranks 2 --window 1 --length 2 --losses 2
  inaproto explore --ranks 3 --window 2 --length 1 --losses 1  (half a minute)
  inaproto explore --length 1 --losses 1 --duplicates 1 --reorder
  inaproto explore --length 1 --losses 1 --early-timers 1
  inaproto explore --world successors --variant chain
\b
What the paper's rules do, read literally:
  inaproto explore --variant free-whole-slot
  inaproto explore --variant free-whole-slot --spare-acks
  inaproto explore --variant free-own-bit --losses 1
  inaproto explore --variant free-own-bit --reorder
  inaproto explore --variant free-own-bit --spare-acks
  inaproto explore --variant free-own-bit --ranks 3 --losses 1 --spare-acks
  inaproto explore --variant free-by-tenant
  inaproto explore --variant single-entry-lookup
"""
_ASSUMED: Final = """
\b
What is assumed:
- Paths are FIFO: data of a rank to the switch, its results to the next rank,
  acknowledgements back. With --reorder a packet may come any time later.
- Faults strike a packet when it is sent: it is lost, or its copy follows
  right behind it. To be lost later on a FIFO path is the same to everybody.
- A retransmission timer expires once nothing of its rank's flow is under way
  and not all that the rank lacks an acknowledgement for waits in the switch
  for other ranks; or once nothing at all is under way. Earlier expiries are
  those of --early-timers.
- Acknowledgements pass the switch as they are: both hops are one step. They
  are in no order with the results to the same rank.
- A rank (NIC and host daemon) acts on what it gets at once, in one step.
- "Can finish" means: from each state there is a way to the end without
  further faults. No fairness: that another order goes round for ever is no
  violation.
\b
What is reduced (--full leaves it out; the tests compare the verdicts):
- Symmetry: ranks are alike, so the first fault strikes the flow of rank 0.
- Ordered starts, with --full too: ranks start before all else, in order.
  Starting later is the same as packets that are longer under way.
- Eager ACKs: an ACK upon which its rank sends nothing is delivered before all
  else; not while a packet may still come late or a timer expire early.
A run that breaks a rule is looked for again without reductions, so that it
is a shortest one (if --states-max allows).
"""
_ADVICE: Final = """

A world grows quickly: by a factor of about ten for each fault more, and by more than that for each rank or
message in flight more. Begin small. A search that would need more than --states-max states ends without a
verdict.

Exit status: 0 if every state is right and can still finish, 1 if not (a shortest run that shows it is
printed), 2 if the command is wrong or the world too large, 130 if interrupted.
"""
_WIDTHS: Final = (5, 8, 8, 8, 10, 10)
_VARIANTS: Final = """
\b
Variants, with the defaults of each (no duplicates in any), and what the
search shows then:
  variant                 ranks  window  length  losses  PSN bits  messages
"""


def epilog() -> str:
    rows = "\n".join(_row(variant) for variant in VARIANTS.values())
    return _EXAMPLES + _ASSUMED + _VARIANTS + rows + worlds_text() + _ADVICE


def worlds_text() -> str:
    """The worlds that are not the ring."""
    lines = ["\n\n\b\nOther worlds:"]
    for name, world in WORLDS.items():
        lines.append(f"  --world {name}: {world.text}")
        for setting, text in world.settings.items():
            lines += _wrapped(f"--set {setting}: {text}", 6)
        for variant, (text, shows) in world.variants.items():
            lines += [*_wrapped(f"{variant}: {text}", 4), *_wrapped(f"shows: {shows}", 6)]
    return "\n".join(lines)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        76,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_on_hyphens=False,
    )


def _row(variant: Variant) -> str:
    config = ring_config(variant.name)
    more = [
        f"--{name.replace('_', '-')} {value}"
        for name in ("early_timers", "ack_every", "transport_window")
        if (value := getattr(config, name))
    ]
    sizes = (config.ranks, config.window, config.length, config.losses, config.psn_bits, config.messages)
    lines = [
        f"  {variant.name:24}"
        + "".join(f"{size:{width}}" for size, width in zip(sizes, _WIDTHS, strict=True)),
        f"      {variant.text}",
        *([f"      also {', '.join(more)}"] if more else []),
        f"      shows: {variant.shows}",
    ]
    return "\n".join(lines)
