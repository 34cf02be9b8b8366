"""What must happen now and then in overlay worlds; a campaign that never meets one tests too little.

Only what several seeds of 1000 show is declared (:mod:`inaproto.sim.campaign.marks`).
"""

from __future__ import annotations

from typing import Final

from inaproto.core.models.events import Mark

DECLARED: Final[dict[str, str]] = {
    # what befalls a world
    "fault: host crash": "a host lost its worker and all it knew, and came back",
    "fault: interior crash": "the same, of a host that has children",
    "fault: server crash": "a server lost all but what was on its disk, and came back",
    "fault: crash of two": "a host and its parent at once",
    "fault: host lost": "and never came back",
    "fault: pause": "a host stood still, and went on as if nothing had been",
    "fault: server pause": "likewise",
    "fault: partition": "nothing passed between a host and anybody else",
    "fault: edge cut": "nothing passed between a host and its parent",
    "fault: connections reset": "all connections of a host broke",
    "fault: worker crash": "a worker's process was gone, and its host lived on",
    "a world had no heartbeats": "a peer is alive while it is connected",
    "fault: burst": "all words had much worse weather for a while",
    "a leaf crashed": "it has no children in any tree",
    "a node with children crashed": "whose children went elsewhere, or waited",
    "a machine was gone without a word": "its peers heard of that late, by their own patience",
    "a word was late": "and held up those behind it",
    "a word was lost with its connection": "which broke",
    "a word was held up by a partition": "its connection lasted",
    "a connection could not be made": "and was tried again",
    "a connection took the place of one that was not known to be broken": "at one of its ends",
    # disks
    "a record waits for the disk": "nothing of it is seen before it is there",
    "a record was lost in a crash": "it had not reached the disk",
    "a record was on disk, and nobody was told": "the server crashed in between",
    "records became a snapshot": "and the log behind it was cut",
    "a server has started again": "from its disk",
    # trees, workers, pulls
    "a tree was three levels high": "or higher",
    "a worker resumed at its first clock": "it was new",
    "a worker resumed at a later clock": "its host had crashed",
    "a worker pulled in the middle of an update": "between its push and its clock",
    "a worker's process went, and another came": "it goes on after the last update that has a clock",
    "a worker's process was gone while its clock was held back, or it left": "which its successor is told of",
    "a worker pulled without waiting for it": "and went on, with several pulls at once",
    "a pull was refused since its worker leaves": "it was one that nobody waited for",
    "a worker left with an update that had no clock": "which counts as its last",
    "a worker was finished": "all that it made is on the disks",
    "a request of a removed worker was refused": "it came back after its removal",
    "weights were those of serial training, bit for bit": "with no staleness, floats too",
    "weights were as old as they may be": "with staleness",
    "a push was withheld until a multiple": "of the staleness plus one",
    "a node pushed once for each clock": "with no staleness",
    # what the cores note
    **{mark.value: "noted by a core" for mark in Mark},
}
