"""What an inspection says: rules, the packets that break them, and notes of what is allowed.

A rule is one that an endpoint or the accelerator can keep whatever the network does. Losses, duplicates and
reordering between the points of capture break none; they are noted. Every rule counts how often it was
applied: a capture of one port, or without directions, cannot show all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from inaproto.wire.files.pcapng import CapturedFrame

ONE_PORT: Final = "packets of that kind"
BOTH_ENDS: Final = "requests and their answers in one capture"
SWITCH: Final = "all ports of a switch, with directions, from the ring's first message on"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    states: str
    source: str
    """Paper, section or specification."""
    needs: str = ONE_PORT


MALFORMED: Final = Rule("malformed frame", "lengths, pad and version fit the frame", "IBTA 9.2, annex A17")
IP_CHECKSUM: Final = Rule("IP checksum", "the IPv4 header sums to zero", "RFC 791")
ICRC: Final = Rule("ICRC", "the invariant CRC covers what the frame holds", "IBTA 7.8.1; NetReduce §4")
OPCODE_ORDER: Final = Rule(
    "opcode order",
    "a message is ONLY, or FIRST, MIDDLEs and LAST at their places",
    "IBTA 9.5; NetReduce §3.1",
)
MESSAGE_LENGTH: Final = Rule(
    "message length",
    "RETH length, INA message length and payloads agree; all packets but the last are whole",
    "IBTA 9.4.3; NetReduce §3.1",
)
PSN_GAP: Final = Rule(
    "PSN gap", "PSNs are contiguous, also from message to message", "IBTA 9.7.2; NetReduce §3.2"
)
RETRANSMISSION: Final = Rule(
    "retransmission differs",
    "a PSN that comes again carries the same bytes",
    "IBTA 9.7.5.1.1; NetReduce §3.2",
)
RKEY: Final = Rule(
    "wrong rkey",
    "messages of a ring go to one memory region of the successor",
    "IBTA 9.7.4.1.5; NetReduce §3.1",
)
INA_HEADER: Final = Rule(
    "INA header", "behind the tag stands a header that decodes", "NetReduce §3.1; docs/concepts.md"
)
WRONG_RING: Final = Rule(
    "wrong ring", "a connection belongs to one ring, epoch and size", "NetReduce §3.2; docs/concepts.md"
)
WRONG_KEY: Final = Rule("wrong key", "every first packet carries the ring's key", "docs/concepts.md")
RANK: Final = Rule(
    "overlapping rank", "a rank of a ring has one connection", "NetReduce §3.2; docs/concepts.md"
)
STALE_FIRST: Final = Rule(
    "stale first packet",
    "a message id and its PSN belong together and only grow",
    "NetReduce §3.2; docs/concepts.md",
)
RANKS_DISAGREE: Final = Rule(
    "ranks disagree", "all ranks send one operation, element type and shape in a message", "NetReduce §3.1"
)
NOT_A_RESULT: Final = Rule(
    "raw payload for a result", "what leaves on a connection of results is marked as one", "NetReduce §3.1"
)
TOO_EARLY: Final = Rule(
    "result too early", "a result leaves when every rank's packet has come", "NetReduce §3.1", SWITCH
)
WRONG_SUM: Final = Rule(
    "wrong sum",
    "a result is the reduction in rank order, bit for bit",
    "NetReduce §3.1; docs/concepts.md",
    SWITCH,
)
RESULT_ORDER: Final = Rule(
    "result order",
    "new results leave in PSN order; one may pass a hole in its own rank's packets, or one that lacks any",
    "NetReduce §3.2; docs/concepts.md",
    SWITCH,
)
WRONG_CONNECTION: Final = Rule(
    "result on a wrong connection",
    "a result goes where its rank's packet was going",
    "NetReduce §3.2",
    SWITCH,
)
ACK_BEYOND: Final = Rule(
    "ACK beyond what was sent", "only what was delivered is acknowledged", "IBTA 9.7.5.1.2", BOTH_ENDS
)
MSN: Final = Rule(
    "MSN goes back", "a later PSN is not acknowledged with fewer messages", "IBTA 9.7.7.2", BOTH_ENDS
)
NAK: Final = Rule(
    "NAK of what was not missing",
    "a NAK needs a later packet that was delivered",
    "IBTA 9.7.5.2.8",
    BOTH_ENDS,
)
REFUSED: Final = Rule("request refused", "no responder answers with a fatal NAK", "IBTA 9.7.5.2", BOTH_ENDS)

RULES: Final = (
    *(MALFORMED, IP_CHECKSUM, ICRC, OPCODE_ORDER, MESSAGE_LENGTH, PSN_GAP, RETRANSMISSION, RKEY),
    *(INA_HEADER, WRONG_RING, WRONG_KEY, RANK, STALE_FIRST, RANKS_DISAGREE),
    *(NOT_A_RESULT, TOO_EARLY, WRONG_SUM, RESULT_ORDER, WRONG_CONNECTION),
    *(ACK_BEYOND, MSN, NAK, REFUSED),
)


@dataclass(frozen=True, slots=True)
class Broken:
    """A packet that breaks a rule."""

    rule: Rule
    frame: CapturedFrame
    connection: str
    psn: int | None
    expected: str
    got: str
    shown_by: int
    """Number of the frame that shows it, where that is a later one."""
    wrong: range = range(0)
    """Bytes of the frame that are wrong, as far as they can be named."""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "rule": self.rule.name,
            "source": self.rule.source,
            "frame": self.frame.number,
            "time_ns": self.frame.when_ns,
            "port": self.frame.interface.name,
            "direction": self.frame.direction.name.lower(),
            "connection": self.connection,
            "psn": self.psn,
            "expected": self.expected,
            "got": self.got,
            "shown_by_frame": self.shown_by,
            "wrong_bytes": [self.wrong.start, self.wrong.stop],
        }


@dataclass(slots=True)
class Books:
    """What an inspection counts."""

    checked: Counter[str] = field(default_factory=Counter)
    """How often each rule was applied, by name."""
    notes: Counter[str] = field(default_factory=Counter)

    def check(self, *rules: Rule) -> None:
        for rule in rules:
            self.checked[rule.name] += 1

    def note(self, what: str, times: int = 1) -> None:
        self.notes[what] += times
