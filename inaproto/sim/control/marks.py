"""What must happen now and then in control worlds; a campaign that never meets one tests too little.

Only what several seeds of 1000 show is declared (:mod:`inaproto.sim.campaign.marks`).
"""

from __future__ import annotations

from typing import Final

DECLARED: Final[dict[str, str]] = {
    # what befalls a world
    "fault: controller crash": "it lost all but what was on its disk, and came back",
    "fault: host crash": "a host lost its seats, and came back",
    "fault: switch restart": "a switch lost its slots and pools, and came back",
    "fault: partition": "nothing passed between a node and the controller",
    "fault: one-way partition": "what a node said did not reach the controller",
    "fault: peer partition": "a node was cut off from all but the controller",
    "fault: burst": "all messages had much worse weather for a while",
    "fault: clock jump": "the controller's clock jumped ahead",
    "fault: mute seats": "a host was heard of, and its seats were not",
    "fault: deaf seats": "a host was heard of, and its seats heard nothing",
    "fault: process stops": "a host's processes began no operation",
    "a message was lost": "by the weather",
    "a message was cut off": "by a partition",
    "a message was late": "so that others overtook it",
    "a message came twice": "by the weather",
    "a message found nobody": "its receiver was down, or had been cut off meanwhile",
    "a record was lost in a crash": "it had not reached the disk",
    "a record was on disk, and nobody was told": "the controller crashed in between",
    "the controller has started again": "from its disk",
    "a switch restarted with slots taken": "its rings were gone with them",
    # jobs
    "a job ended": "all its seats have all results",
    "a job was cancelled": "by a person",
    "a job failed": "it lost a host",
    "a job failed because a host had lost its seat": "the host has started anew",
    "a job failed because a host was silent": "for longer than it may be",
    # rounds
    "sharing: round begun": "votes were asked for",
    "a seat voted": "for a round",
    "sharing: round committed": "a decision was on disk",
    "sharing: round aborted: the seats of a job are at different operations": "as the paper has it",
    "sharing: round aborted: a seat is in an INA operation": "its turn was to end",
    "sharing: round aborted: votes are missing": "in time",
    "sharing: round aborted: seats or wishes changed": "the round had become pointless",
    "a round was tried again": "after one that was aborted",
    "sharing: messages sent again": "a commit was not answered",
    "an operation waited for a lock": "by the rule of equal indices",
    "an operation waited for a decision": "by index: one was on its way that might concern it",
    "a lock went over to the next round": "the seat had not heard the end of the first",
    # doubt
    "sharing: in doubt": "a seat had voted, and heard nothing for its lease",
    "sharing: operation run by the fallback because of a doubt": "and no operation waited for that",
    "sharing: doubt resolved by the coordinator": "it was asked",
    "sharing: doubt resolved by a peer": "which knew, or had never voted",
    "sharing: promised a peer never to vote": "so that the round can never be committed",
    "sharing: decision of an earlier term sent again": "the coordinator found it in its log",
    "sharing: a seat asked about a round that is not in the log": "so it was aborted",
    "sharing: message of an earlier term, round or life": "refused",
    # patience
    "sharing: seat given up: it owed an answer": "so that others could use the pool",
    "sharing: job left out: its seats do not answer": "so that others could use the pool",
    "sharing: job taken in again": "after a while",
    "a seat that was given up used the pool": "nobody had reached it; the next turn made it stale",
    "a turn was ended in which nothing went on": "a process stood, or its host had not been heard",
    # who has a seat
    "a seat was forgotten: its host has it no more": "its ring was parked, or its job is over",
    "a seat was forgotten: its ring has ended at another host": "and its own host was not connected",
    "a seat was forgotten: its host is not heard of": "for the lease",
    # turns and operations
    "a turn stands": "a job may use a pool",
    "a turn was revoked": "it was open, or its job was to drain, and now has an end",
    "sharing: turn ended without a round": "its job lost a seat, or no switch takes its packets",
    "a pool was free again": "a turn had drained",
    "a ring was removed under a turn": "so that it counts as drained",
    "two jobs used a pool for two at once": "as they may",
    "an operation by the switches": "in a turn",
    "an operation stalled at the switches": "it had no result in time",
    "an operation was rescued by the chain": "which some seat had begun by the switches",
    "seats bound an operation differently": "one by the switches, one by the chain",
    "an operation of two bindings was rescued": "all had the same sum",
    "a slot was lost under an operation": "a switch said so to the host that renewed it",
    "a stale epoch was refused at the switch": "a part of an earlier turn came late",
    # trees
    "a switch granted a slot": "to a job's tree",
    "a slot's lease ran out": "no host renewed it",
    "a tree stands": "all its switches have granted",
    "a job is to drain": "before its slots are released",
    "a job was to drain under an operation by the switches": "which ended first",
    "a job has drained": "it has no turn",
    "a tree was changed under a running operation": "hosts were to park a ring that had a turn",
    "a ring was parked": "nothing of it was on its way, and it might leave its switches",
    "all hosts have parked a ring": "so its tree was left",
    "what was acquired in part was given back": "another switch had refused",
    "a plan stands": "every job has the tree of the plan",
    "a plan was replaced while it was under way": "by a newer one",
    **{
        f"the controller crashed while a round was {phase}": "and then started again"
        for phase in ("starting", "idle", "preparing", "deciding", "committing", "backing off")
    },
    **{
        f"the controller crashed while a job was {phase}": "and then started again"
        for phase in ("adopting", "stable", "draining", "releasing", "released", "acquiring", "giving back")
    },
    "the controller crashed while a job was backing off": "and then started again",
}

OF_A_DAY: Final[dict[str, str]] = {
    # what befalls a day
    "fault: flapping link": "a link was down and back, again and again, for minutes",
    "fault: slow host": "all that a host did took some times as long",
    "fault: half-open link": "one direction of a host's link was dead",
    "fault: half-open session": "what a host said, or what it was told, was lost, and nobody was told",
    "fault: rack without power": "all hosts of a rack crashed, and its switch stayed",
    "fault: clock drift": "a clock ran fast, or slow, all day",
    "fault: host crash": DECLARED["fault: host crash"],
    "fault: switch restart": DECLARED["fault: switch restart"],
    "fault: controller crash": DECLARED["fault: controller crash"],
    # what that provokes
    "a link was back, and went again": "before anybody had missed it",
    "a link went down under an operation": "of a job on its host",
    "a link was half open under an operation": "of a job on its host",
    "a chain waited for a link": "of two hosts that follow one another in it",
    "a message was cut off": DECLARED["a message was cut off"],
    "a straggler was waited for": "an operation of its job took as much longer",
    "an operation of a straggler was rescued": "others had waited at the switches for too long",
    "a straggler's turn was ended": "nothing went on in it, and another job waited",
    "a half-open session was found by its keep-alive": "the host was told of no heartbeat that had come",
    "a seat was lost by a half-open session": "its host had not been heard of for the lease",
    "a rack lost its power under a turn": "of a job that has hosts there",
    "a turn moved from a rack without power": "another job has it, whose hosts are not all there",
    "a clock has drifted by a second": "and nothing of what was agreed upon by time has failed",
    "a job was submitted again": "for what was left of it when it failed",
    **{
        name: DECLARED[name]
        for name in (
            *("a job ended", "a job failed", "a job failed because a host had lost its seat"),
            *("a job failed because a host was silent", "a turn stands", "a turn was revoked"),
            *("a turn was ended in which nothing went on", "sharing: turn ended without a round"),
            *("sharing: round committed", "sharing: in doubt", "a pool was free again"),
            *("an operation by the switches", "an operation stalled at the switches"),
            *("an operation was rescued by the chain", "a tree stands", "a job has drained"),
            *("a seat was forgotten: its host is not heard of", "the controller has started again"),
            *("a switch restarted with slots taken", "a slot was lost under an operation"),
        )
    },
}
"""Marks of a day of a cluster; all in a campaign of 100 seeds."""
