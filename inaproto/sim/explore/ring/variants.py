"""The rings that can be explored by name, each with a small size, and what the search finds at that size.

The product must hold at every size. The others are readings of NetReduce section 3.2 that the protocol's
specification makes claims on: which of them fail, and by what; ``docs`` and ``tests/paper`` have the claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from inaproto.errors import ConfigError
from inaproto.sim.explore.ring.config import MESSAGES_MAX, PSN_BITS_MAX, RANGES, RingWorldConfig, check_range
from inaproto.sim.explore.ring.packet_table import PacketTable
from inaproto.sim.explore.ring.paper_switch import Freeing, Lookup, PaperSwitchMachine
from inaproto.sim.explore.ring.switch_machine import AcceleratorMachine, SwitchMachine
from inaproto.sim.explore.ring.world import RingWorld

PRODUCT: Final = "product"


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    text: str
    switch: Callable[[RingWorldConfig, PacketTable], SwitchMachine]
    in_place: bool
    ranks: int = 2
    window: int = 1
    length: int = 1
    losses: int = 1
    messages: int = 0
    """0: what ``ring_config`` says."""
    early_timers: int = 0
    ack_every: int = 0
    transport_window: int = 0
    shows: str = ""
    """What the search finds at this size, in a few words."""
    remark: str = ""
    """What the search has found, for whoever wonders about the verdict."""

    @property
    def size(self) -> tuple[int, int, int]:
        return self.ranks, self.window, self.length


def _paper(
    name: str, text: str, lookup: Lookup, freeing: Freeing, *, shows: str, remark: str, **size: int
) -> Variant:
    switch = partial(PaperSwitchMachine, lookup=lookup, freeing=freeing)
    return Variant(name, text, switch, in_place=False, shows=shows, remark=remark, **size)


_TWO_IN_FLIGHT: Final = {"window": 2, "length": 2, "messages": 2}
_HELD_BACK: Final = {"early_timers": 1, "ack_every": 1, "transport_window": 3}

VARIANTS: Final[Mapping[str, Variant]] = {
    variant.name: variant
    for variant in (
        Variant(
            PRODUCT,
            "the accelerator as it is",
            AcceleratorMachine,
            in_place=True,
            length=2,
            losses=2,
            shows="holds",
        ),
        _paper(
            "free-whole-slot",
            "a packet frees the slot one window away, whoever sent into it",
            Lookup.WINDOW,
            Freeing.CLEAR_SLOT,
            shows="a wrong sum; with --spare-acks a ring that stops",
            remark="A rank that lacks a result resends in vain: its partners' bits are gone. And an old "
            "message that is resent leaves its bit in the slot of a later one: a wrong sum.",
        ),
        _paper(
            "free-own-bit",
            "a packet frees its sender's bit one window away",
            Lookup.WINDOW,
            Freeing.CLEAR_OWN_BIT,
            losses=2,
            shows="a wrong sum; with --spare-acks holds for 2 ranks, stops for 3",
            remark="Holds for two ranks on FIFO paths if no acknowledgement is lost or late (--spare-acks). "
            "A lost one makes its rank resend a message that all others have passed, whose bit then "
            "completes a later sum with an old payload. With three ranks one lost result is enough: those "
            "who had it have freed their bits, and nobody makes them resend.",
        ),
        _paper(
            "free-by-tenant",
            "a later message takes its slot over, but no result is kept or held back",
            Lookup.WINDOW,
            Freeing.TENANT,
            losses=2,
            shows="holds",
            remark="Holds, also with --reorder.",
        ),
        _paper(
            "single-entry-lookup",
            "the lookup table knows one message of each connection, offsets 0 to L-1",
            Lookup.ONE,
            Freeing.TENANT,
            shows="a ring that stops",
            remark="A resend that begins inside a message, after the first packet of the next has passed, "
            "can never be placed: the connection is dead.",
            **_TWO_IN_FLIGHT,
        ),
        _paper(
            "single-entry-negative",
            "one message of each connection, offsets -N*L to L-1",
            Lookup.ONE_NEGATIVE,
            Freeing.TENANT,
            shows="a ring that stops",
            remark="A resend of an older message's first packet takes the entry back; if the newer message's "
            "first packet is in its slot already and is lost when it comes again, the rest of that message "
            "can never be placed. Takes a timer that expires early, and a transport window that holds back.",
            **_TWO_IN_FLIGHT,
            **_HELD_BACK,
        ),
        _paper(
            "single-entry-latest",
            "one message of each connection, never an older one, offsets -N*L to L-1",
            Lookup.ONE_LATEST_NEGATIVE,
            Freeing.TENANT,
            shows="holds; what breaks it, a short message, is in tests/paper",
            remark="Holds for messages of one length; tests/paper shows what a short one breaks.",
            **_TWO_IN_FLIGHT,
            **_HELD_BACK,
        ),
    )
}


def ring_config(
    variant: str = PRODUCT,
    *,
    ranks: int | None = None,
    window: int | None = None,
    length: int | None = None,
    messages: int | None = None,
    last_packets: int = 0,
    psn_bits: int | None = None,
    losses: int | None = None,
    duplicates: int | None = None,
    early_timers: int | None = None,
    spare_acks: bool = False,
    reorder: bool = False,
    ack_every: int | None = None,
    transport_window: int | None = None,
    reduced: bool = True,
) -> RingWorldConfig:
    """A configuration in which what is None has the variant's value, or follows from the rest."""
    chosen = VARIANTS.get(variant)
    if chosen is None:
        raise ConfigError(f"variant {variant!r} does not exist; there are {', '.join(VARIANTS)}")
    given = {
        "ranks": ranks,
        "window": window,
        "length": length,
        "messages": messages,
        "psn_bits": psn_bits,
        "losses": losses,
        "duplicates": duplicates,
        "early_timers": early_timers,
    }
    for name, value in given.items():
        if value is not None:
            check_range(name, value, *RANGES[name])
    ranks = chosen.ranks if ranks is None else ranks
    window = chosen.window if window is None else window
    length = chosen.length if length is None else length
    if duplicates is None:
        duplicates = 1 if reorder else 0
    if losses is None:
        losses = 0 if reorder else chosen.losses
    if psn_bits is None:
        least = 2 * window * length
        if reorder:
            least = max(least, length * (messages or 2 * window + 2))
        psn_bits = min(max(3, (least - 1).bit_length() + 1), PSN_BITS_MAX)
    if messages is None and chosen.messages and (ranks, window, length) == chosen.size:
        messages = chosen.messages
    check_range("last_packets", last_packets, 0, length)
    if messages is None:
        messages = _messages_enough(window, length, last_packets or length, psn_bits, reorder=reorder)
        if messages > MESSAGES_MAX:
            raise ConfigError(
                f"psn_bits {psn_bits} is too large: it takes {messages} messages of {length} packets until a "
                f"PSN is used again, and {MESSAGES_MAX} is the most; give fewer bits, or messages"
            )
    return RingWorldConfig(
        ranks=ranks,
        window=window,
        length=length,
        messages=messages,
        last_packets=last_packets,
        psn_bits=psn_bits,
        id_bits=0 if chosen.name == PRODUCT else 32,
        losses=losses,
        duplicates=duplicates,
        early_timers=chosen.early_timers if early_timers is None else early_timers,
        spare_acks=spare_acks,
        reorder=reorder,
        in_place=chosen.in_place,
        held_for_acks=chosen.name == PRODUCT,
        ack_every=chosen.ack_every if ack_every is None else ack_every,
        transport_window=chosen.transport_window if transport_window is None else transport_window,
        reduced=reduced,
    )


def _messages_enough(window: int, length: int, last: int, psn_bits: int, *, reorder: bool) -> int:
    """The default: as many messages as it takes to use every slot, and where it can be some PSN, again."""
    slots = 2 * window + 2
    return slots if reorder else max(slots, ((1 << psn_bits) - last) // length + 2)


def notes(config: RingWorldConfig) -> list[str]:
    """What a verdict on this ring says nothing about, because it is too short."""
    told = []
    enough = _messages_enough(
        config.window, config.length, config.last_message_packets, config.psn_bits, reorder=config.reorder
    )
    advice = f"; with --messages {enough} it is" if enough <= MESSAGES_MAX else ""
    if not config.slots_used_again:
        told.append(
            f"no slot is used again: {config.messages} messages, and slots for {2 * config.window}{advice}"
        )
    if not config.psns_used_again:
        count = (config.messages - 1) * config.length + config.last_message_packets
        why = "; it must not be where packets come late (--reorder)" if config.reorder else advice
        told.append(f"no PSN is used again: {count} packets of each rank, {1 << config.psn_bits} PSNs{why}")
    return told


def ring_world(variant: str, config: RingWorldConfig) -> RingWorld:
    return RingWorld(config, VARIANTS[variant].switch)
