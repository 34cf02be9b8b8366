"""Faults at links: MTUs that hosts agree on, probes of paths, pauses, and ways that change."""

from __future__ import annotations

from typing import Final

from inaproto.core.host.job import HostJob
from inaproto.core.rdma.nic import SoftNicEngine
from inaproto.core.rdma.path_probes import PathProbes
from inaproto.core.rdma.requester import RcRequester
from inaproto.core.rdma.selective_requester import SelectiveRequester
from inaproto.core.rendezvous.jobs import Job
from inaproto.core.rendezvous.life import Running
from inaproto.core.rendezvous.rendezvous import Rendezvous
from inaproto.core.switch.accelerator import Accelerator
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.port_pauses import PortPauses
from inaproto.core.switch.repairs import Repairs
from inaproto.daemon.switch.control_plane import ControlPlane
from inaproto.daemon.switch.ports import PortBoard
from inaproto.faults.streams import Draws
from inaproto.sim.frames.draw.pauses import paused
from inaproto.sim.frames.draw.routers import routed
from inaproto.sim.frames.draw.swarm import WorldConfig
from tests.planted.planting import PlantedFault, fault

MTU: Final = "docs/protocol.md 12.4, MTU"
PROBES: Final = "docs/protocol.md 3.10"
PAUSES: Final = "docs/protocol.md 6.11, pauses"


def with_pauses(config: WorldConfig) -> WorldConfig:
    return paused(config, Draws(config.seed, "planted/pauses"))


def with_routers(config: WorldConfig) -> WorldConfig:
    return routed(config, Draws(config.seed, "planted/routers"))


LINK_FAULTS: Final[tuple[PlantedFault, ...]] = (
    fault(
        "ring_of_the_largest_mtu",
        MTU,
        "makes a ring with the largest MTU of its hosts, not the smallest",
        Job.mtu,
        "mtu = min(",
        "mtu = max(",
        test="tests/unit/test_path_mtu.py::test_a_ring_has_the_smallest_mtu_of_its_hosts",
        arguments=((4096, 1024, 2048), (), 1024),
    ),
    fault(
        "cut_answer_believed",
        PROBES,
        "takes an answer for what was asked, though it is shorter",
        PathProbes.heard,
        " and is_whole",
        "",
        test="tests/unit/test_path_probes.py::test_what_is_no_whole_answer_teaches_nothing",
        arguments=(lambda frame: frame[:, :-8],),
    ),
    fault(
        "one_link_answers_for_all",
        PROBES,
        "takes an MTU that one of several links carries for that of all",
        PathProbes.heard,
        "if len(ways) == self._ways:",
        "if ways:",
        test="tests/unit/test_path_probes.py::test_of_several_links_all_must_carry_it",
    ),
    fault(
        "earlier_round_believed",
        PROBES,
        "takes a late answer of an earlier round for what the path carries now",
        PathProbes.begin,
        "self._round = (self._round + 1) % _ROUNDS",
        "self._round = 0",
        test="tests/unit/test_path_probes.py::test_another_round_forgets_what_came_back_before",
    ),
    fault(
        "probe_passed_on",
        PROBES,
        "answers a probe and passes it on as well, for others to answer",
        Accelerator._run,
        "elif not self._belongs_to_ring(run, now):",
        "if not self._belongs_to_ring(run, now):",
        test="tests/unit/test_path_probes.py::test_a_switch_answers_each_question_where_it_came_and_passes_none_on",
    ),
    fault(
        "priority_pauses_all",
        PAUSES,
        "is silent altogether where silence was asked of one priority",
        PortPauses.push,
        "if priority not in self._until:",
        "if not self._until:",
        test="tests/unit/test_port_pauses.py::test_a_priority_alone_is_silent_where_that_was_asked",
    ),
    fault(
        "pause_kept_from_shards",
        PAUSES,
        "keeps to itself that the far end of an interface asks for silence, and its shards go on sending",
        PortBoard._heard_of_link,
        "if self._tell_silence is not None and",
        "if False and",
        test="tests/daemon/test_link_ports_board.py::test_who_has_a_port_there_too_is_told_of_a_pause",
    ),
    fault(
        "nic_silent_for_ever",
        PAUSES,
        "lets timers of a NIC go on when a pause is over, and sends nothing",
        SoftNicEngine._end_silence,
        "self.take_output = self._may_send",
        "pass",
        shape=with_pauses,
    ),
    fault(
        "all_go_on_with_one",
        PAUSES,
        "lets all go that it held back when one priority may go on",
        PortPauses.release,
        "held = (self._held.pop(priority, ()) for priority in over)",
        "held = (self._held.pop(priority, ()) for priority in list(self._held))",
        test="tests/unit/test_port_pauses.py::test_priorities_that_go_on_later_are_held_until_then",
    ),
    fault(
        "timer_runs_while_paused",
        PAUSES,
        "has the retransmission timer run while the link is paused",
        RcRequester._leaves_now,
        "began = max(since, self._timer - self._timer_ns)",
        "began = now",
        test="tests/unit/test_rc_requester_timeouts.py::test_a_timer_stands_still_while_the_link_is_paused",
    ),
    fault(
        "way_not_shown_again",
        "docs/protocol.md 4.1, timeouts",
        "never sends the first packet of a message again once it is acknowledged",
        RcRequester._heads,
        "self._doublings >= SPREAD_DOUBLINGS",
        "False",
        shape=with_routers,
        seeds_max=120,
    ),
    fault(
        "way_shown_by_two_messages_alone",
        "docs/protocol.md 6.12, routers",
        "has results go where their rank's router is only when a second message has come from there",
        Flow.settle,
        "self._move(src_mac, dst_mac)",
        "pass",
        test="tests/unit/test_accelerator_fabrics.py::test_the_first_message_finds_a_router_with_two_links",
        arguments=(2,),
    ),
    fault(
        "only_packet_never_believed",
        "docs/protocol.md 6.12, routers",
        "never believes where the only packet of a message comes from, however often it comes",
        Flow.show,
        "self.sightings >= FIRST_SIGHTINGS",
        "False",
        shape=with_routers,
    ),
    fault(
        "left_and_silent",
        "docs/protocol.md 12.7",
        "tells nobody that its ring broke, when all its ranks have left and others still wait for results",
        HostJob._tell_gone,
        " or [rank.gone(reason) for rank in self.ranks]",
        "",
        shape=with_routers,
        seeds_max=300,
    ),
    fault(
        "left_and_lost",
        "docs/protocol.md 12.7",
        "fails a job at once whose ring broke at ranks that had left, though nobody lacks a result",
        Running.withdraw,
        "seat.left_after is not None",
        "False",
        test="tests/unit/test_rendezvous.py"
        "::test_a_ring_that_broke_at_ranks_that_had_left_fails_nobody_who_has_all_results",
    ),
    fault(
        "left_and_forgotten",
        "docs/protocol.md 12.7",
        "notes that a ring broke at ranks that had left, and does not think of it when another rank stalls",
        Running.stalled,
        "broke is not None",
        "False",
        shape=with_routers,
        seeds_max=300,
    ),
    fault(
        "copies_by_the_old_way",
        "docs/protocol.md 6.14, 2",
        "sends a kept result again under the addresses of its packet, whose path may be no more",
        Repairs._nak,
        "way=way",
        'way=b""',
        test="tests/unit/test_repairs.py"
        "::test_a_result_that_is_missing_leaves_by_the_way_that_its_flow_has_now",
    ),
    fault(
        "asks_with_more_and_for_no_answer",
        "docs/protocol.md 4.4, 4",
        "sends more and more after a timeout, and waits for the next one as nothing asks for an answer",
        SelectiveRequester._orders,
        "asks and at == len(seqs)",
        "False",
        test="tests/unit/test_rc_selective.py::test_what_is_asked_for_more_asks_for_its_answer",
    ),
    fault(
        "ring_larger_than_the_accelerator_takes",
        MTU,
        "makes a ring of the MTU that hosts found, though the accelerator takes less",
        Job.mtu,
        "min(mtu, self.mtu_most)",
        "mtu",
        test="tests/unit/test_path_mtu.py"
        "::test_a_ring_has_no_larger_mtu_than_the_accelerator_where_all_its_hosts_can_do_with_that",
        arguments=(256, (1024, 1024, 1024), (), 256),
    ),
    fault(
        "least_that_an_accelerator_ever_took",
        MTU,
        "keeps the least MTU that an accelerator ever said, though another one is there",
        Rendezvous.step,
        "self._state.mtu_most = mtu",
        "self._state.mtu_most = min(self._state.mtu_most or mtu, mtu or self._state.mtu_most)",
        test="tests/unit/test_path_mtu.py::test_what_the_accelerator_takes_is_what_was_said_of_it_last",
        arguments=((256, 1024), 1024),
    ),
    fault(
        "accelerator_asked_once",
        MTU,
        "asks its accelerator once what it takes, and rings for another board have the MTU of the first",
        ControlPlane._step,
        "if most != self._mtu_told:",
        "if not self._mtu_told:",
        test="tests/daemon/test_board_of_another_mtu.py"
        "::test_rings_have_the_mtu_of_the_board_that_is_there_now",
    ),
    fault(
        "pauses_not_counted",
        "docs/protocol.md 6.11",
        "lets what a neighbour says end at its port without a trace",
        Accelerator._pass,
        "self._counters.for_links += len(frames)",
        "pass",
        test="tests/unit/test_accelerator_rules.py"
        "::test_what_is_for_the_far_end_of_a_link_ends_at_its_port_and_is_counted",
        arguments=(1,),
    ),
)
