"""Things that must happen now and then: a campaign that never meets one tests less than it says.

Each declared "sometimes" mark has a name and a meaning. Only what several seeds of 2000 show is declared,
so that its absence from a long campaign means that the worlds have changed, not that luck was bad. Marks
that are met and not declared are reported too.
"""

from __future__ import annotations

from typing import Any, Final, assert_never

from inaproto.faults.weather import UNCOVERED
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.worlds import WORDS
from inaproto.sim.frames.world import WorldResult
from inaproto.sim.kernel.world import RunResult
from inaproto.sim.trees.marks import FURTHER as RARE_TREES

_SEEDS_MIN: Final = dict.fromkeys(WorldKind, 1000) | {WorldKind.SINGLE: 2000, WorldKind.WEATHER: 100}

DECLARED: Final[dict[str, str]] = {
    # what befalls a world
    "fault: burst": "a link had much worse weather for a while",
    "fault: partition": "nothing passed on a link for a while",
    "fault: nic reset": "a NIC lost its queue pairs",
    "fault: host crash": "a host crashed with its ranks and came back",
    "fault: switch reboot": "the switch lost all its state",
    "fault: pause": "a host stood still while frames came in",
    "fault: clock jump": "the clock of a host jumped ahead",
    "fault: one-way partition": "nothing passed from a host to the switch for a while",
    "fault: session loss": "a host lost its control connection",
    "fault during an all-reduce: burst": "the same, while a rank of the host waited for a result; so below",
    "fault during an all-reduce: partition": "nothing passed on its link",
    "fault during an all-reduce: one-way partition": "nothing passed from it to the switch",
    "fault during an all-reduce: nic reset": "its NIC lost its queue pairs",
    "fault during an all-reduce: host crash": "it crashed",
    "fault during an all-reduce: switch reboot": "the switch lost all its state",
    "fault during an all-reduce: pause": "it stood still",
    "fault during an all-reduce: clock jump": "its clock jumped ahead",
    "fault during an all-reduce: session loss": "it lost its control connection",
    "fault: link pause": "somebody was asked to send nothing on a link for a while",
    "fault during an all-reduce: link pause": "the same, while a rank waited for a result",
    "a paused port held frames back": "a switch kept what was for a link that was to be silent",
    "nic: pauses": "a NIC was asked to be silent",
    "weather: lost": "a frame was lost",
    "weather: late": "a frame was late, so that others overtook it",
    "weather: duplicated": "a frame came twice",
    "weather: duplicate overtook": "the copy of a frame came before the frame",
    "weather: bit flipped": "a bit of a frame was flipped",
    "weather: bit flipped where no ICRC looks": "in addresses, or what routers may change",
    "weather: cut off": "a frame was cut off",
    "frames arrived together": "a part was handed several blocks at once",
    # RoCEv2 transport
    "a PSN wrapped": "packet numbers passed 2**24 during a job",
    "nic: retransmits": "a NIC sent packets again",
    "nic: timeouts": "a retransmission timer was due",
    "nic: naks_sent": "a gap was answered with a NAK",
    "nic: naks_ignored": "a NAK came too late to matter",
    "nic: acks_ignored": "an ACK told nothing new",
    "nic: duplicates": "a packet that was taken in already came again",
    "nic: icrc_errors": "a NIC dropped a damaged packet",
    "nic: not_for_us": "a damaged frame came to the wrong host",
    "nic: other_frames": "a NIC met a frame that is not RoCEv2",
    "nic: unknown_qp": "a packet came for a queue pair that is gone",
    "nic: arp_questions": "a NIC got no ACK for long, and asked where its peer is",
    "nic: wrong_source": "a packet came from another than the connected queue pair",
    # the window and the rank
    "a window was full": "a rank had as many messages in flight as it may",
    "an all-reduce stalled": "a rank asked the switch whom it waits for",
    "an all-reduce was overdue": "a rank gave an all-reduce up",
    "a rank was told: join_refused": "a rank asked to join in vain, and had to ask again",
    "a job finished after it had started anew": "a job survived the loss of its ring",
    "a rank was told: rank_lost": "a rank learned that another is gone",
    "a rank was told: fabric_lost": "a rank's own queue pair or NIC was lost",
    "a rank was told: switch_unreachable": "a rank learned that the switch is gone",
    "a rank was told: tensor_mismatch": "ranks that called different all-reduces were told so",
    "a rank was told: timeout": "a rank was told that its all-reduce took too long",
    # the switch
    "two rings at once": "several rings shared the accelerator",
    "a ring was refused for want of memory": "the accelerator had no room for another ring",
    "a ring was faulted for its ranks disagreed": "the accelerator found headers that do not belong together",
    "a host was refused until its old session had ended": "a host came back before it was missed",
    "switch: replayed": "a result was sent again from memory",
    "switch: replay_filled": "a result went on from memory, in the place of a packet that was lost",
    "switch: gaps_signalled": "the accelerator let a gap pass, for the receiver to answer",
    "switch: early": "a packet waited for the first one of its message",
    "switch: early_taken": "the first packet came in time for one that had overtaken it",
    "switch: dropped: wrong ICRC": "the accelerator dropped a damaged packet",
    "switch: dropped: malformed packet of a ring": "the accelerator dropped a packet that makes no sense",
    "switch: dropped: first packet of the message not seen": "a packet came whose message is not known",
    "switch: dropped: older than the tenant": "a packet came whose slot has another message by now",
    "switch: dropped: operations differ": "a packet came of an all-reduce on which ranks disagree",
    "switch: dropped: not from where its rank is": "a packet came from where its rank is not",
    "switch: dropped: ring removed": "a packet came of a ring that was taken away",
}

_FURTHER: Final = {
    RARE_TREES: "and then started again",
    "a ring became an overlay: ": "the hosts summed themselves, up a tree of them",
    "a ring became one of hosts: ": "the hosts summed themselves, in an ordinary ring",
    "a router had no way for a packet": "all its links were down, or it was no IPv4",
    "nic: acks_sent": "a NIC acknowledged packets",
    "nic: blames": "a NIC found a peer breaking the rules of RDMA",
    "nic: messages_received": "a NIC took messages in whole",
    "nic: naks_received": "a NIC was told of a gap",
    "nic: out_of_sequence": "a packet came behind a gap",
    "nic: packets_received": "a NIC took packets in",
    "nic: packets_sent": "a NIC sent packets",
    "switch: bridged": "the accelerator passed frames on as a plain switch does",
    "switch: dropped: ": "the accelerator dropped a packet, for this reason",
    "switch: results_out": "the accelerator sent results",
    "switch: sums_up": "a switch sent sums to the one above",
    "switch: results_in": "a switch got results from the one above",
    "switch: results_down": "a switch sent results to those below",
    "switch: notes_in": "a switch got notes of connections",
    "switch: notes_out": "a switch sent notes of connections",
    "switch: links_down": "a packet was for a switch whose port was down",
    "a join was refused": "a rank's request to join was answered with an error",
    "a mismatch was explained": "a rank was told which ranks call different all-reduces",
    "the switch blamed: ": "the accelerator found a late packet of a ring that is gone, or the like",
    "a rank was told: ": "a rank's job failed with this code",
    "a rank could not go on: ": "a rank of an elastic job ended with this code",
}
"""Texts of marks that are not declared, or of all that begin so."""


_OF_RECOVERY: Final = {
    "a rank was halted": "its ring had ended, its job had not",
    "a job went on in another ring": "the ranks of a halted ring connected anew and went on",
    "a rank caught up with another": "it lacked a result that another rank had, and got the same bytes",
    "a rank caught up with another by several all-reduces": "it lacked results of more than one",
    "a ring ended with several all-reduces on their way": "the window had run over their ends",
    "a rank was halted before it could go on": "the next ring ended as well, or the switch was lost",
    "a ring broke": "a transport gave up, and the rank said so",
    "a ring became a chain: the switch refused it": "the hosts summed themselves, for want of memory",
    "a ring became a chain: it broke twice": "the hosts summed themselves, for the ring broke again",
    "a job returned to the switch": "from a chain",
    "a rank came back from away": "its host had lost the switch, and had it again in time",
    "a rank did not come back and was named": "the others learned who was waited for in vain",
    "an all-reduce outlived a reboot of a switch": "it ran when the switch went down, and was done after it",
}
_OF_RACKS: Final = {
    "fault: trunk burst": "a link between switches had much worse weather for a while",
    "fault: trunk partition": "nothing passed on a link between switches for a while",
    "fault: trunk one-way partition": "nothing passed on it in one direction",
    "fault during an all-reduce: trunk partition": "the same, while a rank waited for a result; so below",
    "fault during an all-reduce: trunk one-way partition": "nothing passed in one direction",
    "fault: trunk link pause": "a switch was asked to send nothing to another for a while",
    "fault during an all-reduce: trunk link pause": "the same, while a rank waited for a result",
    "a trunk was cut under a ring": "a tree of switches lost a link for a while",
    "a tree of two levels": "switches summed what other switches had summed",
    "a tree of three levels": "and other switches that again",
    "a selective ring spanned several switches": "results left them as they were done, not in PSN order",
    "a ring was stopped: switch lost": "a switch of a tree was lost, and with it the ring",
    "switch: strange_addresses": "a first packet counted for its key, its address being damaged",
    "a note was lost": "what a switch had to tell another of a connection did not arrive",
    "a note told of a gap": "the switch that delivers a connection heard that a packet is missing",
    "a note told of repeats": "a host sent again what another switch delivers the results of",
    "switch: sums_up_again": "a switch sent a sum up again, since a host or a hole below asked for it",
    "switch: results_down_again": "a switch was sent a result again by the one above",
    "switch: steered": "packets were sent on to the next switch that sums",
}
_OF_MACHINES: Final = {
    "fault: process death": "a training process died, its host went on",
    "fault during an all-reduce: process death": "the same, while a rank of the host waited for a result",
    "a host posted the sum of several ranks": "and one message left it for all of them",
    "a chain was given the sum of several ranks": "a host of several ranks added its part to a chain",
    "a ring of hosts was given the sum of several ranks": "the same in an ordinary ring",
    "an overlay was given the sum of several ranks": "the same in a tree of hosts",
    "a host of an overlay gathered from several": "their payloads were added in the order of the plan",
    "a result of a ring of hosts": "a message was summed in an ordinary ring of hosts",
    "a rank of a host came late": "others of its host had called an all-reduce and waited for it",
    "an all-reduce stalled for ranks of one host": "they waited for long, and told the switch",
    "ranks of one host disagreed": "they called different all-reduces",
    "a rank died beside others": "the others of its host were told, and so was everybody else",
    "a process died while others of its job were missing": "it was joining; nobody depended on it yet",
    "a host came back with several ranks": "it had lost the switch, and its ranks went on",
    "an all-reduce on one host": "the host added for all ranks of the job",
    "a slice of a sum on one host overtook another": "several added at a time",
    # elastic jobs
    "a job was shrunk": "it had lost a rank, and the others went on as another job",
    "a job was shrunk twice": "that job lost a rank as well, and went on as a third one",
    "several ranks were lost at once": "and all others went on",
    "one survivor went on alone": "all other ranks of the job were lost, or had left",
    "several ranks of a host survived": "and are in the next job together",
    "survivors had different results": "some had the result of an all-reduce that others lacked",
    "a rank died while its job was regrouping": "it was to go on, and was lost as well",
    "survivors agreed once more, on another job": "one was lost before the job that followed had begun",
    "a job that was to follow did not begin": "a survivor heard of it from the job before",
    "a host came back, and its survivors asked again": "it had lost its control connection while they waited",
    "survivors were refused after a restart of the switch": "it had forgotten who might go on",
    "a rank could not go on: join_refused": "the switch did not take it, or the next job could not be",
    "a rank could not go on: timeout": "it waited in vain for another survivor to join",
    "a job was started anew, for nobody went on": "all its ranks had ended, each with a named error",
    "an elastic job went on without a seat, or a rank of one": "its controller knew who was lost",
    "an elastic job had ended for its controller, and what it lost was named": "others came to the end",
    "an elastic job had failed for its controller, and what it lost was named": "nobody did",
    "a host that a controller took for lost came back with its ranks": "their session was away for long",
}
_OF_SHARED: Final = {
    "a job had two rings": "one along its hosts and one in the switches, at once",
    "a job began without the ring in the switches": "they had refused it, and its base ring stood",
    "an all-reduce was bound to the ring in the switches": "when it started",
    "an all-reduce was bound to the base ring": "when it started",
    "an all-reduce waited for its binding": "it was not known yet by which ring it was to go",
    "an all-reduce of the ring in the switches was drained": "results taken, sends acknowledged",
    "a halted rank kept results of the ring in the switches": "for ranks that might lack them",
    "a rank was halted in an all-reduce on the ring in the switches": "which went on by the next base ring",
    "a ring was to move": "through the switches, under its job, to another tree",
    "a ring was parked under its job": "no switch had it, and all went by the base ring",
    "a ring moved under traffic": "and counted its messages on, in one life of its job",
    "a ring could not move where it was wished": "it adds in another order, or a switch was not there",
    "a job began with its second ring parked": "its rings had ended while that was wished nowhere",
    "hosts had bound an all-reduce to different rings": "none could end it, and it went on by the base ring",
}
_OF_SUCCESSORS: Final = {
    "fault: daemon crash": "a host daemon died, its processes did not",
    "fault during an all-reduce: daemon crash": "the same, while a rank of the host waited for a result",
    "a host daemon was replaced in the middle of a job": "its ranks brought the successor their journal",
    "a host daemon was replaced in the middle of an all-reduce": "some results of it had been taken",
    "a host daemon of several ranks was replaced": "all of them came back",
    "a host daemon was replaced whose ranks had left": "others of the job had not",
    "a result was copied again that a daemon had died over": "half of it was in the tensors",
    "a successor told of a result that its predecessor had taken": "and had not told of",
}
_OF_ROUTERS: Final = {
    "fault: router link down": "a router sent by another of its links for a while",
    "fault during an all-reduce: router link down": "the same, while a rank waited for a result",
    "a packet came by a link of a router that was down": "something was sent to where its flow had been",
    "a packet came by another link of its router": "than that of the host that it was for",
}
"""Which worlds of one switch have."""
_NOT_OF_RACKS: Final = frozenset({"switch: dropped: operations differ"})
"""Declared of worlds of one switch; in others they are too rare."""
_NOT_OF_RECOVERY: Final = frozenset({"a rank was told: join_refused"})
"""What a switch refuses, hosts sum."""


_NOT_OF_SHARED: Final = frozenset({"a ring became a chain: it broke twice"})
"""Too rare there: what breaks on two rings goes on by one of them."""


def declared_of(kind: WorldKind) -> dict[str, str]:
    """Marks that a campaign of such worlds must meet, with their meaning."""
    match kind:
        case WorldKind.SINGLE:
            return DECLARED | _OF_ROUTERS
        case WorldKind.RECOVERY:
            return {name: DECLARED[name] for name in DECLARED if name not in _NOT_OF_RECOVERY} | {
                **_OF_ROUTERS,
                **_OF_RECOVERY,
            }
        case WorldKind.RACKS:
            return {name: DECLARED[name] for name in DECLARED if name not in _NOT_OF_RACKS} | {
                **_OF_RACKS,
                **_OF_RECOVERY,
            }
        case WorldKind.MACHINES:
            return DECLARED | _OF_ROUTERS | _OF_MACHINES | _OF_RECOVERY
        case WorldKind.SHARED:
            return _OF_SHARED | {
                name: _OF_RECOVERY[name] for name in _OF_RECOVERY if name not in _NOT_OF_SHARED
            }
        case WorldKind.SUCCESSORS:
            return _OF_SUCCESSORS | _OF_RECOVERY
        case WorldKind.CONTROL | WorldKind.WEATHER | WorldKind.TREES | WorldKind.OVERLAY:
            return dict(WORDS[kind].marks)
        case _:
            assert_never(kind)


def seeds_min_of(kind: WorldKind) -> int:
    """Campaigns of fewer seeds report marks that were not seen, and pass."""
    return _SEEDS_MIN[kind]


def meaning_of(name: str) -> str | None:
    of_words = (words.marks for words in WORDS.values())
    for declared in (
        DECLARED,
        _OF_ROUTERS,
        _OF_RACKS,
        _OF_RECOVERY,
        _OF_MACHINES,
        _OF_SHARED,
        _OF_SUCCESSORS,
        *of_words,
    ):
        if name in declared:
            return declared[name]
    return next((said for begin, said in _FURTHER.items() if name.startswith(begin)), None)


def seen_in(result: RunResult[Any]) -> dict[str, int]:
    """The marks of a run, those that the parts set and those that fates of frames show, with how often."""
    marks = dict(result.marks)
    if not isinstance(result, WorldResult):
        return marks
    for fates in result.fates.values():
        for fate in fates.values():
            named = {
                "weather: lost": fate.drop,
                "weather: late": fate.delay_ns > 0,
                "weather: duplicated": fate.copy_delay_ns >= 0,
                "weather: duplicate overtook": 0 <= fate.copy_delay_ns < fate.delay_ns,
                "weather: bit flipped": fate.corrupt_bit >= 0,
                "weather: bit flipped where no ICRC looks": fate.corrupt_bit >> 3 in UNCOVERED,
                "weather: cut off": fate.cut_bytes >= 0,
            }
            for name, is_so in named.items():
                if is_so:
                    marks[name] = marks.get(name, 0) + 1
    return marks
