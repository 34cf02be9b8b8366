"""Which of the controllers leads, as the agents' sessions show; who is killed may have been the other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import trio


class Leader:
    """``controllers``: by name, the one that leads at first in front."""

    def __init__(self, controllers: Sequence[str]) -> None:
        self._controllers = tuple(controllers)
        self._name = self._controllers[0]
        self._sessions: Counter[tuple[str, str]] = Counter()
        """Sessions that a controller has welcomed, by controller and agent."""
        self._found = trio.Event()

    @property
    def name(self) -> str:
        """The controller that leads, or is next to do so."""
        return self._name

    def welcomed(self, controller: str, agent: str) -> None:
        self._sessions[controller, agent] += 1
        self._name = controller
        self._found.set()

    def disconnected(self, controller: str, agent: str) -> bool:
        """Whether it had been welcomed there."""
        return bool(self._sessions.pop((controller, agent), 0))

    def killed(self, name: str) -> None:
        """Unless another has agents already, it is expected to lead, and agents to find it."""
        others = [one for one in self._controllers if one != name]
        leading = [one for one in others if any(controller == one for controller, _ in self._sessions)]
        self._name = next(iter([*leading, *others]), name)
        self._found = trio.Event()
        if leading:
            self._found.set()

    async def wait_found(self) -> None:
        """Until an agent has found a controller that was not killed since."""
        await self._found.wait()
