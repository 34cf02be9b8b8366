"""One forged word in a net of push/pull cores: drawn anew, or a true one with something changed.

What the forger may have done to itself is *tainted*: the workers below it, and, where a parent lies, whoever
is below that. All others are honest, and are held to what :class:`Net` checks.
"""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np

from inaproto.core.models.events import Answer, Heard, NodeAction, RootAction
from inaproto.errors import Blame
from inaproto.wire.messages.clocks import FOREVER, REMOVED, Clocks, WorkerId
from inaproto.wire.messages.models import (
    Attach,
    Attached,
    Detach,
    Detached,
    Flush,
    Heartbeat,
    HeartbeatAnswer,
    Merged,
    Mode,
    NodeId,
    PullRequest,
    Push,
    Weights,
    Word,
)
from tests.property.push_pull_net import ROOT, Net, ancestors

_ODD = (0, 1, -1, -5, 100, FOREVER - 1, FOREVER, REMOVED, REMOVED + 1, 1 << 63, 1 << 70)


class ForgedNet(Net):
    """Blames end connections, as shells do; ``tainted`` is not judged."""

    tainted: frozenset[WorkerId] = frozenset()
    liar: NodeId | None = None
    blames: tuple[Blame, ...] = ()
    _at = ROOT

    def forge(self) -> Word | None:
        """Somebody hears it of a neighbour to which it is connected; None: nobody is connected."""
        draw = self.random
        pairs = [(a, b) for a, b in sorted(self.inboxes) if self._hears(a, b)]
        if not pairs:
            return None
        teller, hearer = draw.choice(pairs)
        is_child = hearer in ancestors(self.parents, teller)
        word = self._word(teller, hearer, is_child=is_child)
        self.liar = teller
        self.tainted = frozenset(w for w in self.workers if teller in (w, ROOT, *ancestors(self.parents, w)))
        self.step(hearer, Heard(teller, word))
        return word

    def _hears(self, a: NodeId, b: NodeId) -> bool:
        is_there = frozenset((a, b)) in self.linked and (b, a) not in self.unaware
        return is_there and not self.inboxes[a, b] and self._is_up(b)

    def _perform(self, node: NodeId, action: NodeAction | RootAction) -> None:
        self._at = node
        if isinstance(action, Blame):
            self.blames = (*self.blames, action)
            self._unlink(node, NodeId(int(action.peer)))
            self._dial_again()
        else:
            super()._perform(node, action)

    def check(self, answer: Answer) -> None:
        if WorkerId(self._at) in self.tainted:
            return
        counts = self.counts(answer.weights)
        for place, worker in enumerate(self.workers):
            if worker in self.tainted:
                continue
            included = answer.included[worker]
            if included >= FOREVER:
                included = int(counts[place].sum())
            else:
                assert included >= answer.clock - answer.staleness, "staler than was asked"
            assert np.array_equal(counts[place], np.arange(self.updates) < included), f"{counts[place]}"

    def check_honest(self) -> None:
        """All that honest workers made is in the model, once."""
        assert self.root is not None
        counts = self.counts(self.root.snapshot().weights)
        for place, worker in enumerate(self.workers):
            assert worker in self.tainted or (counts[place] == 1).all(), f"worker {worker}: {counts[place]}"

    def check_bounds(self) -> None:
        """Of what is kept nothing grows beyond what the configuration allows."""
        ahead = self.shard.ahead_max
        for node, core in self.nodes.items():
            view = core.view()
            assert view.logged <= len(self.workers) * (ahead + 1), view
            assert len(view.asked) <= ahead * (len(self.workers) + 1), view
            assert len(view.dead) <= len(self.parents), view
            assert set(view.merged) <= set(self.workers), view
            assert node in self.parents

    # --- words

    def _word(self, teller: NodeId, hearer: NodeId, *, is_child: bool) -> Word:
        told = [word for a, b, word in self.told[-400:] if (a, b) == (teller, hearer)]
        if told and self.random.random() < 0.6:
            return self._changed(self.random.choice(told))
        kinds = (Attach, Push, Push, PullRequest, Flush, Heartbeat, Detach)
        down = (Attached, Detached, Weights, Weights, Merged, Mode, HeartbeatAnswer)
        return self._drawn(self.random.choice(kinds if is_child else down))

    def _changed(self, word: Word) -> Word:
        """Perhaps in one field, perhaps not at all: it comes twice."""
        names = [field.name for field in fields(word) if field.name != "id"]
        if not names or self.random.random() < 0.2:
            return word
        name = self.random.choice(names)
        return replace(word, **{name: self._other(getattr(word, name))})

    def _other(self, value: Any) -> Any:
        draw = self.random
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return value + draw.choice((-1, 1, 2)) if draw.random() < 0.7 else draw.choice(_ODD)
        if isinstance(value, Clocks):
            changed = [(w, self._other(c)) if draw.random() < 0.5 else (w, c) for w, c in value.items()]
            return Clocks(changed[draw.random() < 0.2 :])
        if isinstance(value, tuple):
            return (*value[draw.random() < 0.5 :], *draw.sample([0, 1, 2, 7, 99], draw.randint(0, 2)))
        if isinstance(value, np.ndarray):
            found = self._array()
            return value if found is None else found
        return self._array() if value is None else value

    def _drawn(self, kind: type) -> Word:
        draw = self.random
        made: dict[type, Word] = {
            Attach: Attach(self._int(), tuple(sorted(self._some())), self._clocks()),
            Push: self._push(),
            PullRequest: PullRequest(self._int()),
            Flush: Flush(),
            Heartbeat: Heartbeat(tuple(NodeId(self._int()) for _ in range(draw.randint(0, 3))), self._some()),
            Detach: Detach(self._int()),
            Attached: Attached(self._int(), self._clocks(), self._clocks(), draw.random() < 0.3),
            Detached: Detached(self._int(), "forged"),
            Weights: self._weights(),
            Merged: Merged(self._clocks()),
            Mode: Mode(draw.random() < 0.5),
            HeartbeatAnswer: HeartbeatAnswer(draw.random() < 0.5),
        }
        return made[kind]

    def _int(self) -> int:
        return self.random.choice(_ODD) if self.random.random() < 0.2 else self.random.randint(0, 6)

    def _some(self) -> tuple[WorkerId, ...]:
        some = [w for w in self.workers if self.random.random() < 0.5]
        return (*some, *([WorkerId(77)] if self.random.random() < 0.1 else []))

    def _clocks(self) -> Clocks:
        of = self.workers if self.random.random() < 0.4 else self._some()
        return Clocks((worker, self._int()) for worker in of)

    def _push(self) -> Push:
        clock = self._int()
        after = Clocks.alike(self._some() or self.workers[:1], clock)
        before = Clocks.alike(after, clock - 1) if self.random.random() < 0.8 else self._clocks()
        return Push(self._int(), clock, before, after, self._array())

    def _weights(self) -> Weights:
        root = Clocks.alike(self.workers, self._int()) if self.random.random() < 0.6 else self._clocks()
        array = self._array()
        return Weights(root, root, np.zeros(self.shard.elements, np.int64) if array is None else array)

    def _array(self) -> Any:
        draw: Random = self.random
        found: Any = draw.choice(
            [
                None,
                np.ones(self.shard.elements, np.int64),
                np.ones(3),
                np.ones((1, self.shard.elements), np.int64),
            ]
        )
        if found is not None:
            found.setflags(write=False)
        return found
