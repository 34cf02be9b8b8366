"""Control messages between the controller and its agents, the host daemons and switches.

agent -> controller: AgentHello, AgentReport, AgentWhere, Error, Ping, Pong.
controller -> agent: AgentWelcome, AgentWishes, AgentPlacement, Error, Ping, Pong.

Both sides tell the whole of it, always: the controller what the agent shall hold, the agent what it holds.
So any message may be lost, and a later one takes the place of those before it. Revisions order the wishes of
all controllers of a store; an agent takes no older wishes than those that it has. Besides, hosts ask where a
job is placed, if the controller has announced that it answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from inaproto.wire.messages.fields import Many, OneOf, Record
from inaproto.wire.messages.types import U32, U64, Explanation, Flag, LongText, Message, Name, Names, Secret

GRANTS_MAX: Final = 1 << 12
AgentRole = Literal["host", "switch"]
GrantKind = Literal["seats", "tree", "place"]
"""A place is one in the collective library of a host (docs/protocol.md 9.8)."""
HoldPhase = Literal["held", "running", "ended", "failed"]
"""Phase of seats: all ranks have joined; all have left; some have failed. Those of an elastic job have ended
if any of their ranks left in order; the reason names one that did not. A place runs while the job is attached
there."""
_Role = Annotated[AgentRole, OneOf(("host", "switch"))]
_Kind = Annotated[GrantKind, OneOf(("seats", "tree", "place"))]
_Phase = Annotated[HoldPhase, OneOf(("held", "running", "ended", "failed"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    port: LongText = ""
    """The link that it is for, where those have slots of their own; empty: the agent itself."""
    number: U32
    """From 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRecord:
    """A right of a job at this agent."""

    grant: U64
    """Never used again."""
    job: U64
    name: Name
    kind: _Kind
    slots: Annotated[tuple[SlotRecord, ...], Many(Record(SlotRecord), GRANTS_MAX)]
    first_rank: U32 = 0
    """First rank of this host's seats; ``ranks`` and ``size`` count these and the whole job's."""
    ranks: U32 = 0
    size: U32 = 0
    token_hash: Secret = field(default="", repr=False)
    """SHA-256 of what a process must show to take a seat, in hex."""
    switches: Names = ()
    """Switches of the job's tree, its root first; none: it has no tree."""
    elastic: Flag = False
    """Its seats are also those of jobs that go on without a lost rank of it (docs/protocol.md 13.7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRecord:
    grant: U64
    phase: _Phase
    reason: Explanation = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello(Message, type="agent_hello"):
    role: _Role
    agent: Name
    """As the cluster file names it."""
    boot_id: Name
    collective: Flag = False
    """Whether a host has a collective library, and keeps to places in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWelcome(Message, type="agent_welcome"):
    term: U64
    report_ms: U32
    """At least so often."""
    slots: U32 = 0
    """Leases that a switch may give at once, for the controller alone reads the cluster file."""
    trees: Flag = False
    """Whether the root of a fabric shall report where jobs are."""
    places: Flag = False
    """Whether it answers AgentWhere, which hosts may ask."""
    gives_places: Flag = False
    """Whether jobs that have seats by it use the collective library with a place alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWishes(Message, type="agent_wishes"):
    """All that the agent shall hold; what else it has, it gives up."""

    term: U64
    revision: U64
    grants: Annotated[tuple[GrantRecord, ...], Many(Record(GrantRecord), GRANTS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport(Message, type="agent_report"):
    """All that the agent holds. ``revision``: of the wishes that it took last, 0 since it was started."""

    revision: U64
    holds: Annotated[tuple[HoldRecord, ...], Many(Record(HoldRecord), GRANTS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWhere(Message, type="agent_where"):
    """Asks on which hosts a job is, of which a process has come to this one."""

    job: Name
    """As its user named it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlacement(Message, type="agent_placement"):
    """The answer: hosts of a job that is not over, in the order of ranks. None: it has none (yet), or the
    controller knows no such job."""

    job: Name
    hosts: Names = ()
    ranks_per_host: U32 = 0
