"""What must happen now and then in worlds of trees; a campaign that never meets one tests too little.

Only what several seeds of 1000 show is declared (:mod:`inaproto.sim.campaign.marks`).
"""

from __future__ import annotations

from typing import Final

DECLARED: Final[dict[str, str]] = {
    # what befalls a world
    "fault: controller crash": "it lost all but what was on its disk, and came back",
    "fault: switch restart": "a switch lost its slots and rings, and came back",
    "fault: switch stands still": "as a machine does that is suspended",
    "fault: partition": "a switch had no session for a while",
    "fault: session reset": "a session broke, and was made anew",
    "fault: job away": "the root did not know a job for a while",
    "fault: change of mind": "a person wanted a job elsewhere, right after something had happened",
    "fault: burst": "all messages had much worse weather for a while",
    "a message was late": "and others behind it",
    "a message was lost with its session": "it broke, by the weather or with an end",
    "a session took the place of one that was not known to be over": "its switch was quicker",
    "a record waits for the disk": "nothing is said meanwhile",
    "a record was lost in a crash": "it had not reached the disk",
    "a record was on disk, and nobody was told": "the controller crashed in between",
    "the controller has started again": "from its disk",
    "a new leader wished nothing yet": "it did not know what it had promised",
    "a switch restarted with slots taken": "its rings were gone with them",
    "a person wants a job to be elsewhere": "and was told when that was on disk",
    "a job ended": "its slots come back",
    # slots
    "a switch granted a slot": "to a job's tree",
    "a slot's lease ran out": "no ring of its job was there",
    "a tree has its slots": "all its switches have granted",
    # rings
    "a ring stands": "on a tree",
    "a ring stands already where it is wished": "and needs no move for that",
    "a ring was parked": "for another tree, or for none",
    "a ring is not parked, for its job has a turn": "the controller has not held it yet",
    "a ring was lost with a switch": "and its job's next generation began",
    "a ring was refused": "by the fabric, on that tree",
    "a tree that was refused is left alone": "for a while, longer each time",
    # moves
    **{
        f"a move is {phase}": "on its way to another tree"
        for phase in (
            *("draining", "releasing", "released", "acquiring", "giving back", "backing off"),
            "installing",
        )
    },
    "a move ended: stable": "its ring stands on the new tree",
    "a move ended: job over": "before the ring stood",
    **{
        f"the controller crashed while a job was {phase}": "and then started again"
        for phase in ("adopting", "stable", "draining", "releasing", "acquiring")
    },
}
FURTHER: Final = "the controller crashed while a job was "
"""Begins marks of rare phases."""
