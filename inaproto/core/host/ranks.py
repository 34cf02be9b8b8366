"""The ranks that one host has of a job: who they are, what they have called, and who of them has left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from inaproto.core.host.config import HostConfig
from inaproto.core.host.events import LinkAddresses
from inaproto.core.host.ring_words import name_ranks
from inaproto.wire.control_messages import Gone, Member
from inaproto.wire.messages.client import Join

REASON_CHARACTERS_MAX: Final = 1000


@dataclass(slots=True)
class HostedRank:
    """One rank, from its joining to its end."""

    join: Join
    id: int
    """The request by which the switch was asked last to take it."""
    called: int = 0
    """All-reduces."""
    done: int = 0
    """All-reduces that it has the results of."""
    left_after: int | None = None
    """All-reduces that it called before it left; None while it is in the job."""
    has_ended: bool = False

    def __str__(self) -> str:
        return f"rank {self.number} of job {self.join.job!r} (pid {self.join.pid})"

    @property
    def number(self) -> int:
        """Its rank in the job."""
        return self.join.rank

    @property
    def has_left(self) -> bool:
        return self.left_after is not None

    def member(
        self, config: HostConfig, link: LinkAddresses, *, progress: int | None, boot_id: str
    ) -> Member:
        """What the switch is told of it."""
        join = self.join
        return Member(
            id=self.id,
            job=join.job,
            rank=join.rank,
            size=join.size,
            key=join.key,
            pid=join.pid,
            host=config.host,
            mtu=config.mtu,
            mtu_fits=config.mtu_fits,
            window_messages=config.window_messages,
            message_packets=config.message_packets,
            out=link.out,
            into=link.into,
            progress=progress,
            left_after=self.left_after,
            boot_id=boot_id,
            path=join.path,
            exact_plan=join.exact_plan,
            elastic=join.elastic,
            collective=self.terms(config),
            life=join.life,
        )

    def terms(self, config: HostConfig) -> str:
        """What the collective here takes, if the job would have its results."""
        wants = self.join.path == "auto" and not self.join.exact_plan
        return str(config.collective) if wants and config.collective is not None else ""

    def gone(self, reason: str, *, ring_id: int = 0) -> Gone:
        """What says that it is lost to its job; ``ring_id``: to one that has failed, where it could have
        regrouped."""
        text = reason[:REASON_CHARACTERS_MAX]
        return Gone(job=self.join.job, rank=self.number, reason=text, ring_id=ring_id)


class HostedRanks:
    """The ranks of one host, by number, ascending."""

    def __init__(self) -> None:
        self._ranks: dict[int, HostedRank] = {}

    def __iter__(self) -> Iterator[HostedRank]:
        return iter(self._ranks.values())

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, number: int) -> HostedRank:
        return self._ranks[number]

    def get(self, number: int) -> HostedRank | None:
        return self._ranks.get(number)

    def by_request(self, id: int) -> HostedRank | None:
        """The rank that the switch was asked by that request to take."""
        return next((rank for rank in self if rank.id == id), None)

    def add(self, rank: HostedRank) -> None:
        self._ranks = dict(sorted((self._ranks | {rank.number: rank}).items()))

    def remove(self, number: int) -> None:
        del self._ranks[number]

    @property
    def numbers(self) -> list[int]:
        return list(self._ranks)

    @property
    def lowest(self) -> int:
        """It speaks for all ranks of this host."""
        return next(iter(self._ranks))

    @property
    def size(self) -> int:
        """The job's, in which they are; a rank that says otherwise is refused by the switch."""
        return next((rank.join.size for rank in self), 0)

    @property
    def have_all_left(self) -> bool:
        return all(rank.has_left for rank in self)

    @property
    def are_elastic(self) -> bool:
        """The others may go on without a rank that is lost: then they fail in its name, not in their own."""
        return any(rank.join.elastic for rank in self)

    def gone(self, reason: str) -> list[Gone]:
        """What says that all of them are lost to their job, but for those that have left."""
        return [rank.gone(reason) for rank in self if not rank.has_left]

    def describe(self, job: str) -> str:
        """As people read it: ``ranks 0, 1 of job 'j' (pids 17, 18)``."""
        if len(self) == 1:
            return str(next(iter(self)))
        pids = ", ".join(str(rank.join.pid) for rank in self)
        return f"{name_ranks(self.numbers)} of job {job!r} (pids {pids})"
