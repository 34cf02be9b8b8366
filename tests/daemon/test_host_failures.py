"""What goes away, and when: processes, ranks, links, switches, daemons. All others are told, and go on."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import inaproto
from inaproto.daemon.host import ring_settings
from inaproto.daemon.host.rank_processes import TOLD_CHARACTERS_MAX
from inaproto.errors import (
    DaemonUnreachable,
    FabricLost,
    JobError,
    JoinRefused,
    LocalMisuse,
    OperationTimeout,
    RankLost,
    SwitchUnreachable,
)
from inaproto.ports import Nic
from inaproto.wire.control_messages import Failed, JobStatus
from tests.clusters.loopback import Cluster, RunningHost, open_cluster, together

SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 3}


async def sum_of_ones(comms: list[inaproto.Communicator], count: int = 500) -> None:
    works = [comm.all_reduce(np.ones(count, np.int32)) for comm in comms]
    for work in works:
        assert (await work == len(comms)).all()


# --- ranks


async def test_a_process_that_dies_is_named_to_all_others(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 3, **SMALL) as cluster:
        comms = await cluster.job("j", 3)
        others = await cluster.job("others", 3)
        works = [comm.all_reduce(np.ones(9, np.float32)) for comm in comms[:2]]
        comms[2].channel.close()  # what the kernel does for a process that is killed
        for work in works:
            with pytest.raises(RankLost) as info:
                await work
            for part in ("rank 2", "h2", f"pid {os.getpid()}", "'j'", "ended without leaving"):
                assert part in str(info.value)
        with pytest.raises(RankLost, match="rank 2"):
            comms[0].all_reduce(np.ones(9, np.float32))
        await sum_of_ones(others)


@pytest.mark.parametrize("in_order", [False, True])
async def test_who_went_by_itself_and_who_had_been_told_is_known_when_all_are_gone(
    runtime_dir: Path, in_order: bool
) -> None:
    """Who has started processes reads there which rank failed first."""
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)

        def known(rank: int) -> tuple[str, bool]:
            [process] = cluster.hosts[rank].daemon.status()["rank_processes"]
            assert (process["job"], process["rank"], process["session"]) == ("j", rank, os.getsid(0))
            return process["told"], process["gone"]

        assert known(0) == known(1) == ("", False)
        if in_order:
            comms[1].all_reduce(np.ones(9, np.float32))  # which it does not wait for
            await comms[1].aclose()
        else:
            comms[1].channel.close()
        with pytest.raises(RankLost) as info:
            await comms[0].all_reduce(np.ones(9, np.float32))
        comms[0].channel.close()
        with trio.fail_after(600):
            while not (known(0)[1] and known(1)[1]):  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert known(1) == ("", True)
        assert known(0) == (f"RankLost: {info.value}"[:TOLD_CHARACTERS_MAX], True)


async def test_a_killed_process_is_named_with_its_own_pid(runtime_dir: Path) -> None:
    """A real process with the blocking client, and a real SIGKILL."""
    script = """
        import sys, numpy, inaproto
        comm = inaproto.connect_blocking("j", 1, size=2, socket=sys.argv[1])
        comm.all_reduce(numpy.ones(5000, numpy.float32)).wait()
        sys.stdin.read()
    """
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        command = [sys.executable, "-c", textwrap.dedent(script), str(cluster.hosts[1].socket)]
        with await trio.to_thread.run_sync(
            partial(subprocess.Popen, command, stdin=subprocess.PIPE)
        ) as process:
            comm = await cluster.connect("j", 0, size=2)
            assert (await comm.all_reduce(np.ones(5000, np.float32)) == 2).all()
            process.kill()
            with pytest.raises(RankLost, match=rf"rank 1 \(h1, pid {process.pid}\).*ended without leaving"):
                await comm.all_reduce(np.ones(5000, np.float32))
            assert await trio.to_thread.run_sync(process.wait) == -9


async def test_an_exception_in_a_rank_is_not_taken_for_an_orderly_end(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        with pytest.raises(ZeroDivisionError):
            async with comms[1]:
                raise ZeroDivisionError
        with pytest.raises(RankLost, match="rank 1"):
            await comms[0].all_reduce(np.ones(9, np.float32))


async def test_a_rank_that_leaves_while_it_is_needed_is_lost(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        abandoned = comms[1].all_reduce(np.ones(9, np.float32))
        await comms[1].aclose()
        with pytest.raises(JobError, match="was closed"):
            await abandoned
        with pytest.raises(RankLost, match=r"rank 1 .*left while its all-reduce 0 was running"):
            await comms[0].all_reduce(np.ones(9, np.float32))


async def test_the_last_result_reaches_all_even_if_the_others_leave_at_once(runtime_dir: Path) -> None:
    """A rank that has its result may still have to repeat messages and acknowledgements for the others."""
    async with open_cluster(runtime_dir, 3, weather="drop=0.1,reorder=0.05", **SMALL) as cluster:
        for number in range(5):
            comms = await cluster.job(f"j{number}", 3)

            async def rank(comm: inaproto.Communicator) -> None:
                async with comm:
                    assert (await comm.all_reduce(np.ones(3000, np.int32)) == 3).all()

            await together([lambda comm=comm: rank(comm) for comm in comms])  # type: ignore[misc]


async def test_a_join_that_is_given_up_frees_the_rank(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        with pytest.raises(OperationTimeout, match=r"rank 1 of 2 did not"):
            await cluster.connect("j", 0, size=2, timeout=0.1)
        with trio.move_on_after(0.1):
            await cluster.connect("j", 0, size=2)
        comms = await cluster.job("j", 2)
        await sum_of_ones(comms)


# --- the switch


async def test_a_switch_that_stops_fails_the_jobs_and_may_come_back(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, switch=False, **SMALL) as cluster:
        for _ in range(3):
            switch = await cluster.start_switch()
            comms = await cluster.job("j", 2)
            await sum_of_ones(comms)
            waiting = comms[0].all_reduce(np.ones(9, np.float32))
            await switch.stop()
            for call in (
                waiting.wait,
                lambda comms=comms: comms[1].all_reduce(np.ones(9, np.float32)).wait(),
            ):
                with pytest.raises(JobError, match=r"switch") as info:
                    await call()
                assert isinstance(info.value, SwitchUnreachable | FabricLost)


async def test_a_lost_link_is_made_again_and_the_job_goes_on(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 3, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        nic = cluster.hosts[1].nic
        waiting = [comm.all_reduce(np.ones(100_000, np.float32)) for comm in comms]
        await nic.aclose()
        for work in waiting:
            assert (await work == 2).all()
        [ring] = cluster.hosts[1].daemon.status()["rings"]
        assert ring["recoveries"] == 1
        assert re.search(r"host h1 has lost its switch: link", ring["halted_because"][0])
        await sum_of_ones(comms)
        assert cluster.hosts[1].daemon.status()["switch"]["connections"] == 2
        assert cluster.hosts[0].daemon.status()["switch"]["connections"] == 1


async def test_who_waits_for_the_switch_is_shown_meanwhile(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        host = cluster.hosts[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.nic.aclose)
            while (status := host.daemon.status())["switch"]["connected"]:
                await trio.lowlevel.checkpoint()
        [ring] = status["rings"]
        assert (ring["job"], [rank["rank"] for rank in ring["ranks"]]) == ("j", [1])
        assert "has lost its switch" in ring["halted_because"][-1]
        await sum_of_ones(comms)


async def test_a_join_that_waits_outlives_its_switch(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, switch=False, **SMALL) as cluster:
        switch = await cluster.start_switch()
        found: list[inaproto.Communicator] = []

        async def one(rank: int) -> None:
            found.append(await cluster.connect("j", rank, size=2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, 0)
            while not any(ring["waiting_for"] == [1] for ring in cluster.hosts[0].daemon.status()["rings"]):
                await trio.lowlevel.checkpoint()
            await switch.stop()
            await cluster.start_switch()
            nursery.start_soon(one, 1)
        await sum_of_ones(found)


class SlowToClose:
    """A NIC that has not closed before it is told to (or its daemon has no more patience)."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        self.closing = trio.Event()
        self.may_close = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nic, name)

    async def aclose(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        await self._nic.aclose()


async def test_a_join_while_the_old_link_is_closing_waits_for_the_next_switch(runtime_dir: Path) -> None:
    nics: list[Any] = []

    def slow(nic: Nic) -> Any:
        nics.append(nic if nics else SlowToClose(nic))  # the first one
        return nics[-1]

    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        switch = await cluster.start_switch()
        await cluster.start_host(wrap_nic=slow)
        await cluster.start_host()
        await sum_of_ones(await cluster.job("before", 2))
        await switch.stop()
        await nics[0].closing.wait()
        assert not cluster.hosts[0].daemon.status()["switch"]["connected"]
        async with trio.open_nursery() as nursery:
            found: dict[int, inaproto.Communicator] = {}

            async def one(rank: int) -> None:
                found[rank] = await cluster.connect("j", rank, size=2)

            nursery.start_soon(one, 0)
            clients = cluster.hosts[0].daemon.status()["clients"]
            while cluster.hosts[0].daemon.status()["clients"] == clients:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()  # its join has been read
            nics[0].may_close.set()
            await cluster.start_switch()
            nursery.start_soon(one, 1)
        await sum_of_ones([found[0], found[1]])


async def test_news_of_an_earlier_ring_do_not_touch_a_rank_that_joins_anew(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, **SMALL) as cluster:
        for _ in range(2):
            await cluster.start_host(relayed=True)
        relay = cluster.hosts[0].relay
        before = await cluster.job("j", 2)
        relay.hold(Failed)
        before[1].channel.close()
        while not relay.held:
            await trio.lowlevel.checkpoint()
        before[0].channel.close()
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int) -> None:
            found[rank] = await cluster.connect("j", rank, size=2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, 0)
            while ring_of(cluster, 0, "j").get("waiting_for") != [1]:
                await trio.lowlevel.checkpoint()
            relay.release()
            nursery.start_soon(one, 1)
        await sum_of_ones([found[0], found[1]])


async def test_a_wire_that_carries_nothing_ends_in_an_error(runtime_dir: Path) -> None:
    """With a bounded number of retries; by default a queue pair never gives up, and the stall is reported."""
    options: dict[str, Any] = {"retry_count": 2, "transport_timeout": 8} | SMALL
    async with open_cluster(runtime_dir, 2, weather="drop=1", **options) as cluster:
        comms = await cluster.job("j", 2)
        for work in [comm.all_reduce(np.ones(9, np.float32)) for comm in comms]:
            with pytest.raises(
                JobError, match=r"the connection to rank . on host h. failed: .*retry counter"
            ) as info:
                await work
            assert isinstance(info.value, FabricLost | RankLost)


# --- operations that take too long


async def test_an_overdue_operation_does_not_wait_for_the_switch_either(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, operation_timeout_ms=50, **SMALL) as cluster:
        for _ in range(2):
            await cluster.start_host(relayed=True)
        comms = await cluster.job("j", 2)
        cluster.hosts[0].relay.hold(JobStatus)
        with pytest.raises(OperationTimeout, match="the switch does not say for which ranks"):
            await comms[0].all_reduce(np.ones(9, np.float32))
        assert cluster.hosts[0].relay.held


async def test_without_a_limit_an_operation_may_take_for_ever(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, stall_ms=10, operation_timeout_ms=0, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        early = comms[0].all_reduce(np.ones(9, np.float32))
        while ring_of(cluster, 0, "j")["stalls"] < 3:
            await trio.lowlevel.checkpoint()
        await comms[1].all_reduce(np.ones(9, np.float32))
        assert (await early == 2).all()


def ring_of(cluster: Cluster, host: int, job: str) -> dict[str, Any]:
    rings = cluster.hosts[host].daemon.status()["rings"]
    return next((ring for ring in rings if ring["job"] == job), {})


# --- host daemons


async def test_a_host_daemon_that_stops_tells_its_processes_and_the_other_ranks(runtime_dir: Path) -> None:
    """One of a job that is to outlive nothing; others are in test_host_successors."""
    async with open_cluster(runtime_dir, 3, recover_ms=0, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        bystanders = await bystanding_pair(cluster)
        works = [comms[0].all_reduce(np.ones(9, np.float32))]
        await cluster.hosts[1].stop()
        assert not cluster.hosts[1].socket.exists()
        with pytest.raises(DaemonUnreachable, match="was stopped; start it and join again"):
            await comms[1].all_reduce(np.ones(9, np.float32)).wait()
        with pytest.raises(RankLost, match=r"rank 1 \(h1, pid \d+\).*its host daemon was stopped"):
            await works[0]
        await sum_of_ones(bystanders)


async def bystanding_pair(cluster: Cluster) -> list[inaproto.Communicator]:
    """A job of two on hosts 0 and 2."""
    found: dict[int, inaproto.Communicator] = {}

    async def one(rank: int, host: int) -> None:
        found[rank] = await cluster.connect("bystanders", rank, size=2, host=host)

    await together([lambda: one(0, 0), lambda: one(1, 2)])
    return [found[0], found[1]]


async def test_a_host_daemon_that_starts_late_is_waited_for(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 1, **SMALL) as cluster:
        found: list[inaproto.Communicator] = []

        async def early() -> None:
            found.append(await inaproto.connect("j", 1, size=2, socket=runtime_dir / "h1.sock"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(early)
            await trio.testing.wait_all_tasks_blocked()
            await cluster.start_host()
            found.append(await cluster.connect("j", 0, size=2))
        await sum_of_ones(found)
        await together([comm.aclose for comm in found])


async def test_a_name_is_free_when_its_job_has_failed(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        for _ in range(3):
            comms = await cluster.job("j", 2)
            comms[0].channel.close()
            with pytest.raises(RankLost):
                await comms[1].all_reduce(np.ones(9, np.float32))


# --- one process


async def test_a_communicator_does_not_survive_fork(runtime_dir: Path) -> None:
    """In a child made by fork, the socket is its parent's: using it would mix two conversations."""
    script = """
        import os, sys, numpy, inaproto
        with inaproto.connect_blocking("j", 0, size=1, socket=sys.argv[1]) as comm:
            child = os.fork()
            if child == 0:
                try:
                    comm.all_reduce(numpy.ones(3, numpy.float32))
                except inaproto.LocalMisuse as misuse:
                    os._exit(42 if "fork" in str(misuse) else 1)
                os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
            assert comm.all_reduce(numpy.ones(3, numpy.float32)).wait().tolist() == [1, 1, 1]
    """
    async with open_cluster(runtime_dir, 1, **SMALL) as cluster:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(cluster.hosts[0].socket)]
        done = await trio.to_thread.run_sync(
            lambda: subprocess.run(command, capture_output=True, check=False)
        )
        assert done.returncode == 0, done.stderr.decode()


async def test_misuse_is_refused_before_anything_is_sent(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        for wrong in (np.ones((4, 4), np.float32)[:, 1], np.ones(4, np.complex64), [1.0]):
            with pytest.raises(LocalMisuse):
                comms[0].all_reduce(wrong)
        with pytest.raises(LocalMisuse):
            comms[0].all_reduce(np.ones(4, np.float32), "mean")
        await sum_of_ones(comms)


async def test_more_operations_than_the_daemon_keeps_are_refused_and_nothing_is_lost(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_settings, "OPERATIONS_MAX", 20)
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        works = [comms[0].all_reduce(np.full(1, number, np.int32)) for number in range(20)]
        with pytest.raises(LocalMisuse, match="20 all-reduces have not ended, the limit; wait for one"):
            comms[0].all_reduce(np.ones(1, np.int32))
        for number, work in enumerate(works):
            assert (await comms[1].all_reduce(np.full(1, number, np.int32)) == 2 * number).all()
            assert (await work == 2 * number).all()
        works = [comms[0].all_reduce(np.ones(1, np.int32)) for _ in range(20)]  # room again
        for _ in works:
            await comms[1].all_reduce(np.ones(1, np.int32))
        while ring_of(cluster, 0, "j")["operations_queued"]:
            await trio.lowlevel.checkpoint()
        comms[0].all_reduce(np.ones(1, np.int32))  # they have ended, though nobody has waited for one
        assert (await comms[1].all_reduce(np.ones(1, np.int32)) == 2).all()


async def test_thousands_of_operations_learn_why_they_failed(runtime_dir: Path) -> None:
    """Told once for all: thousands of messages would not fit into the daemon's bounded output."""
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        works = [comms[0].all_reduce(np.ones(1, np.int32)) for _ in range(ring_settings.OPERATIONS_MAX)]
        while ring_of(cluster, 0, "j")["operations_queued"] < len(works):
            comms[0].channel.pump()
            await trio.lowlevel.checkpoint()
        comms[1].channel.close()
        for work in works:
            with pytest.raises(RankLost, match="rank 1"):
                await work


async def test_a_timeout_leaves_the_operation_running(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        work = comms[0].all_reduce(np.ones(9, np.float32))
        with pytest.raises(
            OperationTimeout, match="all-reduce 0 of rank 0 of job 'j' did not end within 0 s"
        ):
            await work.wait(0)
        second = comms[0].all_reduce(np.ones(9, np.float32))
        with pytest.raises(OperationTimeout, match="waits for all-reduce 0, submitted before"):
            await second.wait(0)
        for _ in range(2):
            await comms[1].all_reduce(np.ones(9, np.float32))
        assert (await work == 2).all()
        assert (await second == 2).all()


async def test_a_job_name_that_no_switch_takes(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 1, **SMALL) as cluster:
        with pytest.raises(JoinRefused, match=re.escape("letters, digits, '.', '_' or '-'")):
            await cluster.connect("no such/job", 0, size=1)


@pytest.mark.parametrize("victim", ["process", "link", "host daemon"])
async def test_an_operation_has_one_result_whatever_fails(runtime_dir: Path, victim: str) -> None:
    """Cut at each stage of an operation: every rank gets the one right result, or an error."""
    expected = np.arange(6000, dtype=np.int32) * 6
    outcomes: list[str] = []
    async with open_cluster(runtime_dir, 3, weather="drop=0.02,reorder=0.02", **SMALL) as cluster:
        for stage in range(0, 33, 8):
            comms = await cluster.job(f"j{stage}", 3)

            async def rank(number: int, comm: inaproto.Communicator) -> None:
                values = np.arange(6000, dtype=np.int32) * (number + 1)
                try:
                    result = await comm.all_reduce(values)
                except JobError as error:
                    outcomes.append(type(error).__name__)
                else:
                    assert result.tobytes() == expected.tobytes()
                    outcomes.append("result")

            async with trio.open_nursery() as nursery:
                for number, comm in enumerate(comms):
                    nursery.start_soon(rank, number, comm)
                while results_of(cluster, f"j{stage}") < stage:
                    await trio.lowlevel.checkpoint()
                await cut(cluster, comms[1], victim)
    assert len(outcomes) == 15
    if victim in ("link", "host daemon"):
        assert outcomes == ["result"] * 15
        return
    assert "result" not in outcomes[:3], "cut before the first result"
    assert set(outcomes) <= {"result", "RankLost", "FabricLost", "DaemonUnreachable", "JobError"}


LONG_MESSAGE: dict[str, Any] = {"mtu": 1024, "message_packets": 600, "transport_timeout": 12}
"""120000 int32 are one message of it, 470 packets: only the first has a header by which to know a result."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victim", ["process", "link", "host daemon"])
async def test_no_rank_takes_the_raw_tail_of_a_message_for_a_result(
    runtime_dir: Path, victim: str, seed: int
) -> None:
    """Cut in the middle of a message, while the other hosts have not yet heard that the job has failed.

    What a neighbour sent and nobody summed must not complete a message that began with sums.
    """
    draw = random.Random(f"{seed}/cut")
    expected = (np.arange(120_000, dtype=np.int32) * 6).tobytes()
    async with open_cluster(runtime_dir, 0, weather="drop=0.002", **LONG_MESSAGE) as cluster:
        for _ in range(3):
            await cluster.start_host(relayed=True)
        for number in range(3):
            comms = await cluster.job(f"j{number}", 3)
            results: dict[int, bytes] = {}
            ended: set[int] = set()

            async def rank(
                number: int, comm: inaproto.Communicator, results: dict[int, bytes], ended: set[int]
            ) -> None:
                try:
                    results[number] = (
                        await comm.all_reduce(np.arange(120_000, dtype=np.int32) * (number + 1))
                    ).tobytes()
                except JobError:
                    pass
                finally:
                    ended.add(number)

            others = [cluster.hosts[0], cluster.hosts[2]]
            for host in others:
                host.relay.hold(Failed)
            async with trio.open_nursery() as nursery:
                at = packets(others[0], "packets_received") + draw.randrange(500)
                for number_of_rank, comm in enumerate(comms):
                    nursery.start_soon(rank, number_of_rank, comm, results, ended)
                while packets(others[0], "packets_received") < at and 0 not in ended:
                    await trio.lowlevel.checkpoint()
                await cut(cluster, comms[1], victim)
                before = [packets(host, "timeouts") for host in others]
                while not all(
                    rank in ended or is_idle(host, f"j{number}", timeouts + 2)
                    for host, timeouts, rank in zip(others, before, (0, 2), strict=True)
                ):
                    await trio.lowlevel.checkpoint()
                for host in others:
                    host.relay.release()
            assert set(results.values()) <= {expected}, f"cut at packet {at}, results of {sorted(results)}"


def is_idle(host: RunningHost, job: str, timeouts: int) -> bool:
    """It has nothing to send again, or has sent it again in vain."""
    rings = host.daemon.status()["rings"]
    unacknowledged = sum(ring.get("unacknowledged", 0) for ring in rings if ring["job"] == job)
    return unacknowledged == 0 or packets(host, "timeouts") >= timeouts


def packets(host: RunningHost, counter: str) -> int:
    return host.nic.statistics()[counter]


def results_of(cluster: Cluster, job: str) -> int:
    """Results that rank 0 of ``job`` has; all of them when its operation has ended."""
    for ring in cluster.hosts[0].daemon.status()["rings"]:
        if ring["job"] == job and ring["operations_done"] == 0:
            return int(ring["messages_received"])
    return 1 << 30


async def cut(cluster: Cluster, comm: inaproto.Communicator, victim: str) -> None:
    if victim == "process":
        comm.channel.close()
    elif victim == "link":
        await cluster.hosts[1].nic.aclose()
    else:
        await cluster.hosts[1].stop()
        await cluster.restart_host(1)
