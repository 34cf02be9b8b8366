"""What the root concludes from failures: tree or direct mode, workers to remove (MLNet section 3.2).

In the tree, nodes are dead that the root, or a heartbeat, takes for dead; there are as many, at least, as
workers that were below some node and have been below none for twice ``dead_ns``: of a node that dies together
with its parent nobody tells. In direct mode those that are not attached to the root are missing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from inaproto.core.models.children import Bond, Children
from inaproto.core.models.events import RootConfig
from inaproto.units import Instant
from inaproto.wire.messages.clocks import FOREVER, Clocks, WorkerId
from inaproto.wire.messages.models import NodeId

STANDS: Final = 16
"""A tree that stood for so many waits did not fall because it was built up too soon."""
DOUBLINGS_MAX: Final = 10


class Failures:
    def __init__(self, config: RootConfig, now: Instant) -> None:
        self._config = config
        self._enough_since: Instant | None = None
        """Since when few enough are missing for the tree to be built up."""
        self._absent_since: dict[WorkerId, Instant] = dict.fromkeys(config.workers, now)
        """Workers that are below no node: since when."""
        self._seen: set[WorkerId] = set()
        """Those that were below a node since the start."""
        self._start_ends = Instant(now + config.patience.start_ns)
        self._now = now
        self._doublings = 0
        """Doublings of the wait before the tree is built up, one for each time that it had stood but
        briefly."""
        self._built_at: Instant | None = None
        self.is_direct = False
        self.why = ""

    def dead(self, children: Children) -> tuple[NodeId, ...]:
        if self.is_direct:
            attached = {child.node for child in children.bound(Bond.ATTACHED)}
            return tuple(node for node in self._config.nodes if node not in attached)
        said = children.dead
        return tuple(node for node in self._config.nodes if node in said)

    def new_mode(self, children: Children, now: Instant) -> bool | None:
        """Whether it is direct, from now on; None: it stays as it is."""
        dead = self.dead(children)
        failures = len(dead) if self.is_direct else max(len(dead), len(self._gone(now)))
        are_many = failures >= self._config.teardown_failures
        if not self.is_direct:
            return self._tear_down(dead, now) if are_many else None
        if are_many:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        if self._enough_since is None or now < self._enough_since + self._wait:
            return None
        self._built_at = now
        return self._change(dead, is_direct=False)

    @property
    def _wait(self) -> int:
        patience = self._config.patience
        return max(patience.return_ns, patience.dead_ns) << self._doublings

    def _tear_down(self, dead: tuple[NodeId, ...], now: Instant) -> bool:
        """Where hosts are slower than their patience, a tree falls soon after it is built up."""
        if self._built_at is not None:
            is_brief = now < self._built_at + STANDS * self._wait
            self._doublings = min(self._doublings + 1, DOUBLINGS_MAX) if is_brief else 0
        return self._change(dead, is_direct=True)

    def _gone(self, now: Instant) -> list[WorkerId]:
        limit = 2 * self._config.patience.dead_ns  # children of a dead node need it once to go elsewhere
        return [w for w, since in self._absent_since.items() if w in self._seen and now > since + limit]

    def _change(self, dead: tuple[NodeId, ...], *, is_direct: bool) -> bool:
        self.is_direct, self._enough_since = is_direct, None
        self.why = ", ".join(str(node) for node in dead) or "none"
        return is_direct

    def absent_since(self, worker: WorkerId) -> Instant | None:
        """None: it is below a node that is attached, or has left."""
        return self._absent_since.get(worker)

    @property
    def absent(self) -> tuple[WorkerId, ...]:
        """Workers that are below no node that is attached."""
        return tuple(sorted(self._absent_since))

    def removed(self, children: Children, clocks: Clocks, now: Instant) -> list[WorkerId]:
        """Who has been absent for too long."""
        self._now = now
        here = {w for c in children.bound(Bond.ATTACHED) for w in c.workers if w not in c.lost}
        for worker, clock in clocks.items():
            if worker not in here and clock < FOREVER:
                self._absent_since.setdefault(worker, now)
        self.met([worker for worker in clocks if worker in here or clocks[worker] >= FOREVER])
        late = [worker for worker, at in self._removals if now >= at]
        for worker in late:
            del self._absent_since[worker]
        return late

    def was_away(self, for_ns: int) -> None:
        """The root: nobody was absent meanwhile, nor back."""
        self._start_ends = Instant(self._start_ends + for_ns)
        self._absent_since = {w: Instant(since + for_ns) for w, since in self._absent_since.items()}
        if self._enough_since is not None:
            self._enough_since = Instant(self._enough_since + for_ns)

    def met(self, workers: Collection[WorkerId]) -> None:
        """They are below a node that is attached."""
        self._seen.update(workers)
        for worker in workers:
            self._absent_since.pop(worker, None)

    @property
    def _removals(self) -> list[tuple[WorkerId, Instant]]:
        """Who is to be removed when, if it stays away. Hosts start one by one: not before ``start_ns`` is
        over, who has not been here."""
        limit = self._config.removal_ns
        if limit is None:
            return []
        return [
            (w, Instant(since + limit if w in self._seen else max(since + limit, self._start_ends)))
            for w, since in sorted(self._absent_since.items())
        ]

    @property
    def _dying(self) -> list[Instant]:
        """When one worker more will have been absent for long."""
        limit = 2 * self._config.patience.dead_ns + 1
        times = [Instant(since + limit) for w, since in self._absent_since.items() if w in self._seen]
        return [time for time in times if time > self._now]

    @property
    def deadline(self) -> Instant | None:
        times = []
        if self._enough_since is not None:
            times.append(Instant(self._enough_since + self._wait))
        if not self.is_direct:
            times += self._dying
        times += [at for _, at in self._removals]
        return min(times, default=None)
