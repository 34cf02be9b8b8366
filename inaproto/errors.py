"""The error table: who is wrong decides the shape.

| who is wrong | shape |
|---|---|
| the caller | :class:`LocalMisuse`, state untouched |
| a peer | :class:`Blame`, a value that a core returns; policy decides |
| bytes from a stranger | :class:`DecodeError`, the only thing a decoder may raise |
| network or hardware | :class:`FabricError` |
| a feature is absent | :class:`Unsupported`, at start-up |
| the configuration | :class:`ConfigError`, names the field |
| a job, seen by its processes | :class:`JobError` and its kinds, each with a code for the wire |
| nobody: the problem has no answer | :class:`Infeasible`, a value with a witness |
| us | :class:`InvariantBroken`; its owner dies |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


class InaprotoError(Exception):
    """Root of all exceptions that inaproto raises on purpose."""


class DecodeError(InaprotoError, ValueError):
    """Bytes that are not a valid record of ``layer``."""

    def __init__(self, layer: str, reason: str, offset: int = 0) -> None:
        super().__init__(f"{layer}: {reason} (at byte {offset})")
        self.layer = layer
        self.reason = reason
        self.offset = offset


class LocalMisuse(InaprotoError):
    """The caller broke a rule of this API; nothing was changed."""


class InvariantBroken(InaprotoError):
    """A fault of ours: the owner of the state must not go on."""


class Unsupported(InaprotoError):
    """A capability that is not here; raised at start-up, never in mid-run."""

    def __init__(self, capability: str, why: str) -> None:
        super().__init__(f"{capability} is not available: {why}")
        self.capability = capability
        self.why = why


class ConfigError(InaprotoError):
    """A configuration value that cannot be used; the message names the field and the remedy."""


class FabricError(InaprotoError):
    """Network or hardware failed an operation."""

    def __init__(self, op: str, peer: str, phase: str, cause: str, *, retryable: bool) -> None:
        super().__init__(f"{op} with {peer} failed while {phase}: {cause}")
        self.op = op
        self.peer = peer
        self.phase = phase
        self.cause = cause
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class Blame:
    """A peer did what the protocol forbids. ``rule`` is a stable short name, for counters and logs."""

    peer: str
    rule: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.peer}: {self.rule}: {self.evidence}"


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A well-formed problem that has no answer: what a planner returns instead of one."""

    reason: str
    """A stable short sentence."""
    witness: Mapping[str, int | str] = field(default_factory=dict)
    """What proves it, by name: numbers that do not fit, nodes that are apart."""

    def __str__(self) -> str:
        facts = ", ".join(f"{name}: {value}" for name, value in self.witness.items())
        return f"{self.reason} ({facts})" if facts else self.reason


class JobError(InaprotoError):
    """What a training process is told; ``code`` travels in control messages."""

    code: ClassVar[str] = "job"
    operations_done: int | None = None
    """All-reduces whose results this rank has, where its job has failed; else None."""


class JoinRefused(JobError):
    """The job or the rank cannot be joined as asked (wrong key, rank taken, sizes differ, ...)."""

    code = "join_refused"


class RankLost(JobError):
    """A rank of the job is gone; the message names it."""

    code = "rank_lost"


class TensorMismatch(JobError):
    """Ranks called the same all-reduce with different shapes, dtypes or operations."""

    code = "tensor_mismatch"


class FabricLost(JobError):
    """The path between this host and its ring failed."""

    code = "fabric_lost"


class DaemonUnreachable(JobError):
    """The host daemon does not answer; the message says where it was looked for and how to start it."""

    code = "daemon_unreachable"


class SwitchUnreachable(JobError):
    """The host daemon cannot reach its switch."""

    code = "switch_unreachable"


class OperationTimeout(JobError):
    """An operation did not end within its deadline; the message says what it was waiting for."""

    code = "timeout"


JOB_ERRORS: dict[str, type[JobError]] = {
    kind.code: kind
    for kind in (
        JobError,
        JoinRefused,
        RankLost,
        TensorMismatch,
        FabricLost,
        DaemonUnreachable,
        SwitchUnreachable,
        OperationTimeout,
    )
}
