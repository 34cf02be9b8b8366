"""The controller daemon: the controller, its agents' socket, and the job API, in one Trio program."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from inaproto.ca.identity import Role
from inaproto.daemon.net.control_address import Holder, credentials_of, parse_listen
from inaproto.daemon.net.http_server import HttpConfig, serve
from inaproto.daemon.net.tls_listener import TlsListener, listen_tls
from inaproto.daemon.net.unix_sockets import BACKLOG, BoundSocket, listen_unix, make_run_directory
from inaproto.daemon.observe.loop_watch import LoopWatch
from inaproto.daemon.settings.fabric_file import load_fabric
from inaproto.daemon.switch.job_secret import tokens_of
from inaproto.errors import ConfigError
from inaproto.tracing.opening import tracing_of_daemon
from inaproto.wire.messages.controller import AgentRole
from inaproto_controller.cluster import capacity, graph_file
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.cluster_planner import ClusterPlanner
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.planning.paring.live_placement import JointPlacement
from inaproto_controller.service.agents import Agents
from inaproto_controller.service.api import BODY_BYTES_MAX, application
from inaproto_controller.service.controller import Controller
from inaproto_controller.service.settings import ControllerSettings
from inaproto_controller.service.sharp.opening import reservations_of
from inaproto_controller.service.store.opening import open_store
from inaproto_controller.service.trees.service import TreeService
from inaproto_controller.service.turns.service import SharingService

if TYPE_CHECKING:
    from inaproto_controller.planning.paring.live_trees import LiveTrees

log = logging.getLogger("inaproto.controller")
http_log = logging.getLogger("inaproto.controller.http")

NAME_BYTES_MAX: Final = 128
"""Most bytes of names of hosts and switches, in messages."""
CONNECTIONS_MAX: Final = 4096
"""Of the job API at a time: clients that wait for a job have one each. The others are for agents."""
DRAIN_S: Final = 1.0
SWITCH_S: Final = 0.0005
COLLECTIONS: Final = (1_000, 10, 1_000)
"""Answers under way have so long when it ends."""


async def run_controller(
    settings: ControllerSettings, *, stop: trio.Event, announce: Callable[[str], None]
) -> None:
    """Until ``stop``. Raises ``ConfigError``, and ``InvariantBroken`` for a fault of ours."""
    topology = _topology(settings)
    fabric = FabricTrees(topology, share_max=settings.share_max)
    live = _live_trees(settings, topology, fabric.slots)
    planner = ClusterPlanner(topology, _joint(settings, topology, live))
    roles = _roles(planner)
    if planner.no_fragments and planner.joint is None:
        log.warning("hosts are placed as they are free: %s", planner.no_fragments)
    make_run_directory(settings.dir, "controller")
    store = open_store(settings.store_or_default)
    job_secret = tokens_of(settings.job_secret)

    sharing = partial(
        SharingService,
        lease_s=settings.lease_ms / 1000,
        roots=[switch.name for switch in planner.topology.switches],
    )

    def make_agents(changed: Callable[[], None]) -> Agents:
        return Agents(
            roles,
            lease_s=settings.lease_ms / 1000,
            report_s=settings.report_ms / 1000,
            sessions_max=2 * len(roles) + 64,
            changed=changed,
            sharing=sharing,
            sharp=planner.sharp,
            trees=lambda send, sharing: TreeService(
                send, sharing, fabric, root=settings.fabric_root, live=live
            ),
        )

    reservations = reservations_of(settings, planner.topology)
    loop = LoopWatch()
    # The planner computes in a thread. Each time that the event loop has called the system it waits for that
    # thread to pause, by default 5 ms: with a thousand agents to be told something, for seconds.
    sys.setswitchinterval(SWITCH_S)
    # A collection of garbage stops all tasks: many short ones, and one of everything (50 ms with a thousand
    # agents) after ten million objects that stayed.
    gc.set_threshold(*COLLECTIONS)
    tracing = tracing_of_daemon(settings.tracing, "controller", settings.name or "controller")
    controller = Controller(
        store,
        planner,
        make_agents,
        jobs_max=settings.jobs_max,
        job_secret=job_secret,
        token_days=settings.token_days,
        reservations=reservations,
        loop=loop,
        tracing=tracing,
    )
    with ExitStack() as stack:
        if tracing is not None:
            stack.callback(tracing.close)
        agents = await listen_unix(settings.agents_path, "agents' socket")
        stack.callback(agents.close)
        jobs = await listen_unix(settings.jobs_path, "jobs' socket")
        stack.callback(jobs.close)
        machines = await _listen_to_machines(settings)
        if machines is not None:
            stack.callback(machines.close)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(controller.run)
            nursery.start_soon(controller.agents.accept_sessions, agents)
            if machines is not None:
                nursery.start_soon(machines.run)
                nursery.start_soon(controller.agents.accept_sessions, machines)
            api_ended = trio.Event()
            await nursery.start(partial(_serve_api, controller, settings, jobs, stop, api_ended))
            by_tls = "" if machines is None else f" control={machines.address}"
            if settings.metrics:
                from inaproto.daemon.net.metrics_server import serve_metrics
                from inaproto_controller.service.metrics import controller_metrics

                await nursery.start(serve_metrics, settings.metrics, controller_metrics, controller.status)
            trio.lowlevel.add_instrument(loop)  # until here nobody is kept waiting
            stack.callback(trio.lowlevel.remove_instrument, loop)
            announce(f"ready controller jobs={settings.jobs_path} agents={settings.agents_path}{by_tls}")
            await stop.wait()
            await api_ended.wait()
            nursery.cancel_scope.cancel()


def _topology(settings: ControllerSettings) -> GraphTopology:
    """Raises ``ConfigError``."""
    topology = graph_file.read(settings.cluster)
    if settings.capacity_model == "file":
        return topology
    return capacity.limited(topology, capacity.CapacityModel(settings.capacity_model))


async def _listen_to_machines(settings: ControllerSettings) -> TlsListener | None:
    """Raises ``ConfigError``."""
    if not settings.agents_listen:
        return None
    endpoint = parse_listen(settings.agents_listen)
    holder = Holder(Role.CONTROLLER, settings.name, settings.tls, settings.dir)
    return await listen_tls(endpoint.host, endpoint.port, credentials_of(endpoint, holder))


async def _serve_api(
    controller: Controller,
    settings: ControllerSettings,
    jobs: BoundSocket,
    stop: trio.Event,
    ended: trio.Event,
    *,
    task_status: trio.TaskStatus[object],
) -> None:
    config = HttpConfig()
    config.connections_max = CONNECTIONS_MAX
    config.bind = [f"fd://{os.dup(jobs.sock.fileno())}", *([settings.tcp] if settings.tcp else [])]
    http_log.setLevel(logging.WARNING)
    config.errorlog = http_log
    config.h11_max_incomplete_size = BODY_BYTES_MAX
    config.backlog = BACKLOG  # it listens anew at the socket that it is given
    config.keep_alive_timeout = 75
    config.graceful_timeout = DRAIN_S
    config.include_server_header = False
    try:
        await serve(
            cast("Any", application(controller)),  # Starlette's own type says less of a scope
            config,
            shutdown_trigger=stop.wait,
            task_status=task_status,
        )
    except OSError as error:
        raise ConfigError(f"tcp: cannot listen at {settings.tcp}: {error.strerror or error}") from None
    finally:
        ended.set()


def _joint(
    settings: ControllerSettings, topology: GraphTopology, live: LiveTrees | None
) -> JointPlacement | None:
    """Raises ``ConfigError``."""
    if settings.placement != "paring":
        return None
    if live is None:
        raise ConfigError("placement = paring chooses hosts with their trees: it needs trees = paring")
    sharp = next((switch.name for switch in topology.switches if switch.sharp), None)
    if sharp is not None:
        raise ConfigError(
            f"placement = paring: switch {sharp} sums by SHARP, which PARING plans no trees for"
        )
    return JointPlacement(live)


def _live_trees(
    settings: ControllerSettings, topology: GraphTopology, slots: Mapping[str, int]
) -> LiveTrees | None:
    """``topology``: that of the cluster file, with the limits that are in force. Raises ``ConfigError``."""
    if settings.trees != "paring":
        return None
    from inaproto_controller.planning.paring.exact_numbers import parse_exact
    from inaproto_controller.planning.paring.live_trees import LiveTrees
    from inaproto_controller.planning.paring.network_file import read_network

    rate_cap = parse_exact(settings.host_gbit_s)
    network = read_network(settings.cluster, server=Fraction(0))
    names = map(network.topology.name, range(network.topology.nodes))
    capacities = dict(zip(names, network.capacities, strict=True))
    own = {} if settings.fabric is None else own_above(settings.fabric)
    live = LiveTrees(topology, capacities, rate_cap or Fraction(0), slots=slots, own_above=own)
    if not live.capacities:
        log.warning("no switch of the cluster file has both jobs and a capacity: PARING will plan no tree")
    return live


def own_above(fabric_file: Path) -> dict[str, str]:
    """The switch above each in the fabric's own tree. Raises ``ConfigError``."""
    entries = load_fabric(fabric_file).entries
    return {entry.name: entry.uplinks[0].above for entry in entries if entry.uplinks}


def _roles(planner: ClusterPlanner) -> dict[str, AgentRole]:
    roles: dict[str, AgentRole] = dict.fromkeys(sorted(planner.hosts), "host")
    roles |= dict.fromkeys(sorted(planner.summing - planner.sharp), "switch")
    for name in roles:
        if len(name.encode()) > NAME_BYTES_MAX:
            raise ConfigError(f"cluster: the name {name[:40]}... is longer than {NAME_BYTES_MAX} bytes")
    return roles
