"""The contract of collectives over the one in memory, and its faults."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from inaproto.errors import ConfigError, FabricError
from inaproto.faults.collective import CollectiveFates, CollectiveFaults, Outcome
from inaproto.ports import Collective, load_adapter
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.memory import MemoryCollective, MemoryTree, tree_named
from tests.contract.collective_contract import HOSTS, CollectiveContract, Table, on_all

ONES = [np.ones(8, np.float32)] * HOSTS


class TestMemory(CollectiveContract):
    tree = MemoryTree()

    def collectives(self, hosts: int) -> list[Collective]:
        self.tree = MemoryTree()
        return [MemoryCollective(self.tree) for _ in range(hosts)]

    def with_faults(self, **faults: int) -> list[Collective]:
        tree = MemoryTree(3, CollectiveFaults(**faults))
        return [MemoryCollective(tree) for _ in range(HOSTS)]

    async def test_a_refused_attempt(self) -> None:
        collectives, table = self.with_faults(refused=1000), Table(HOSTS)

        async def one(at: int) -> bool:
            with pytest.raises(FabricError, match="no resources") as found:
                await collectives[at].attach("train", 1, table.seat(at))
            return found.value.retryable

        assert await on_all(one) == [True] * HOSTS

    async def test_one_host_is_refused(self) -> None:
        collectives, table = self.with_faults(refused_at_one=1000), Table(HOSTS)

        async def one(at: int) -> int:
            try:
                await collectives[at].attach("train", 1, table.seat(at))
            except FabricError:
                return 1
            return 0

        assert sum(await on_all(one)) == 1

    @pytest.mark.parametrize(("fault", "retryable"), [("failed", True), ("lost", False)])
    async def test_an_operation_that_fails_everywhere(self, fault: str, retryable: bool) -> None:
        attached = await self.attach(self.with_faults(**{fault: 1000}), 1)
        found = await attached.all_reduce(ONES, Dtype.F32, Op.SUM)
        assert [error is not None and error.retryable for error in found] == [retryable] * HOSTS
        again = await attached.all_reduce(ONES, Dtype.F32, Op.SUM)
        assert [error is not None and error.retryable for error in again] == [retryable] * HOSTS

    async def test_an_operation_with_different_bytes(self) -> None:
        attached = await self.attach(self.with_faults(wrong=1000), 1)
        assert await attached.all_reduce(ONES, Dtype.F32, Op.SUM) == [None] * HOSTS
        assert len({bytes(each) for each in attached.results}) == 2

    async def test_an_operation_that_never_ends(self, autojump_clock: trio.testing.MockClock) -> None:
        attached = await self.attach(self.with_faults(never=1000), 1)
        with trio.move_on_after(20) as waited:
            await attached.all_reduce(ONES, Dtype.F32, Op.SUM)
        assert waited.cancelled_caught
        await attached.release()

    async def test_a_tree_that_is_lost_while_hosts_wait(self) -> None:
        attached = await self.attach(self.collectives(HOSTS), 1)

        async def first() -> None:
            with pytest.raises(FabricError, match="gone"):
                await attached.attachments[0].all_reduce(*attached.keys[0], 32, Dtype.F32, Op.SUM)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            self.tree.lose()

    async def test_different_operations_end_the_attachment(self) -> None:
        attached = await self.attach(self.collectives(HOSTS), 1)
        parts = [np.ones(8 + at, np.float32) for at in range(HOSTS)]
        found = await attached.all_reduce(parts, Dtype.F32, Op.SUM)
        assert all(error is not None and "different" in str(error) for error in found)

    async def test_memory_that_is_not_registered(self) -> None:
        attached = await self.attach(self.collectives(1), 1, nbytes=64)
        with pytest.raises(FabricError, match="65 bytes are not in the memory"):
            await attached.attachments[0].all_reduce(*attached.keys[0], 65, Dtype.F32, Op.SUM)


def test_whoever_opens_a_name_meets_there() -> None:
    opened = load_adapter("memory-collective", "collective").open("here")
    assert opened.capabilities.name == "memory"
    assert tree_named("here") is tree_named("here")
    assert tree_named("here") is not tree_named("there")


def test_fates_are_those_of_the_seed() -> None:
    faults = CollectiveFaults(
        refused=100, refused_at_one=100, failed=100, failed_at_some=200, never=100, lost=50, wrong=50
    )
    one, same, other = (CollectiveFates(seed, "train", faults) for seed in (1, 1, 2))
    drawn = [one.operation(1, number, 3) for number in range(300)]
    assert drawn == [same.operation(1, number, 3) for number in range(300)]
    assert drawn != [other.operation(1, number, 3) for number in range(300)]
    assert {outcome for outcomes in drawn for outcome in outcomes} == set(Outcome)
    assert {tuple(sorted(it.value for it in one.attach(n, 3))) for n in range(100)} == {
        ("done", "done", "done"),
        ("done", "done", "failed"),
        ("failed", "failed", "failed"),
    }


@pytest.mark.parametrize(
    "wrong",
    [{"never": 1001}, {"lost": -1}, {"failed": 600, "wrong": 600}, {"refused": 600, "refused_at_one": 600}],
)
def test_chances_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        CollectiveFaults(**wrong)
