"""Work requests that a NIC posts together, and completions that the device does not tell of one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio

from inaproto.errors import InvariantBroken, LocalMisuse
from inaproto.ports import Completion, CompletionKind, QpAddress, QpAttributes, Segment, Status
from inaproto_adapters.verbs import memory
from inaproto_adapters.verbs.nic import VerbsConfig, VerbsNic
from inaproto_hil.bench.verbs.device import OWN, StubbedDevice

_SIGNALED, _INLINE = 2, 8


@pytest.fixture
def device() -> Iterator[StubbedDevice]:
    made = StubbedDevice(real=False)
    with made.installed():
        yield made


class Sender:
    """A connected queue pair, and memory to send from."""

    def __init__(self, signal_every: int = 1, nbytes: int = 4096, **limits: int) -> None:
        self.nic = VerbsNic(OWN, VerbsConfig(**limits))
        self.qpn = self.nic.create_qp(psn=0).qpn
        self.region = self.nic.register_memory(memoryview(bytes(nbytes)))
        self.nic.connect_qp(
            self.qpn, QpAddress(OWN.mac, OWN.ip, 9, 0), QpAttributes(signal_every=signal_every)
        )

    def write(self, wr_id: int, nbytes: int = 1000, at: int = 0) -> None:
        segment = Segment(self.region.key, self.region.va + at, nbytes)
        self.nic.post_write_imm(self.qpn, wr_id, [segment], remote_va=5, rkey=6, imm=7)

    def batch(self, *wr_ids: int) -> None:
        self.nic.begin_batch()
        for wr_id in wr_ids:
            self.write(wr_id)
        self.nic.end_batch()

    @property
    def serials(self) -> list[int]:
        return [serial for serial, _ in self.nic.queue_pair(self.qpn).posted[0]]


def flags(device: StubbedDevice) -> list[list[int]]:
    return [[request.send_flags & _SIGNALED for request in chain] for chain in device.chains]


def sent(*results: tuple[int, Status], qpn: int) -> list[Completion]:
    return [Completion(qpn, CompletionKind.SEND, wr_id, status) for wr_id, status in results]


def complete(device: StubbedDevice, sender: Sender, serial: int, status: int = 0) -> None:
    device.completed.append({"wr_id": serial, "qp_num": sender.qpn, "status": status})


def test_a_batch_is_one_call_and_its_last_write_is_told_of(device: StubbedDevice) -> None:
    sender = Sender(signal_every=4)
    sender.batch(*range(6))
    assert flags(device) == [[0, 0, 0, _SIGNALED, 0, _SIGNALED]]
    sender.batch(6, 7)
    assert flags(device)[1:] == [[0, _SIGNALED]], "nobody needs a later write to hear of this one"
    sender.write(8)
    assert flags(device)[2:] == [[_SIGNALED]]


def test_a_batch_in_a_batch_ends_with_it(device: StubbedDevice) -> None:
    sender = Sender()
    sender.nic.begin_batch()
    sender.batch(0)
    assert device.chains == []
    sender.nic.end_batch()
    assert len(device.chains) == 1


def test_what_is_made_for_a_write_is_given_back(device: StubbedDevice) -> None:
    sender = Sender()
    sender.batch(0, 1)
    sender.write(2)
    device.refuses.add("post_send")
    with pytest.raises(Exception, match="Failed to post_send"):
        sender.write(3)
    assert [request.is_closed for chain in device.chains for request in chain] == [True] * 3
    assert all(request.is_closed for request in device.writes)


def test_a_completion_is_that_of_all_writes_before_it(device: StubbedDevice) -> None:
    sender = Sender(signal_every=2)
    sender.batch(10, 11, 12)
    complete(device, sender, sender.serials[1])
    done = (Status.SUCCESS,)
    assert sender.nic.poll() == sent((10, *done), (11, *done), qpn=sender.qpn)
    complete(device, sender, sender.serials[0])
    assert sender.nic.poll() == sent((12, *done), qpn=sender.qpn)


@pytest.mark.parametrize("told", [[2, 3, 4], [2, 4]])
def test_writes_before_one_that_fails_are_complete(device: StubbedDevice, told: list[int]) -> None:
    """Those behind it are not, whether the device says so of each or not."""
    sender = Sender(signal_every=8)
    sender.batch(*range(5))
    serials = sender.serials
    complete(device, sender, serials[told[0]], status=12)
    for at in told[1:]:
        complete(device, sender, serials[at], status=5)
    good, flushed = Status.SUCCESS, Status.FLUSHED
    expected = ((0, good), (1, good), (2, Status.RETRY_EXCEEDED), (3, flushed), (4, flushed))
    assert sender.nic.poll() == sent(*expected, qpn=sender.qpn)


def test_a_completion_of_what_was_not_posted_is_a_fault(device: StubbedDevice) -> None:
    sender = Sender()
    sender.batch(0)
    complete(device, sender, sender.serials[0] + 1)
    with pytest.raises(InvariantBroken, match="out of order"):
        sender.nic.poll()


@pytest.mark.parametrize("refused", ["post_send", "post_recv"])
def test_what_the_device_refuses_of_a_batch_fails(device: StubbedDevice, refused: str) -> None:
    sender = Sender()
    sender.nic.post_receive(sender.qpn, 40)
    device.refuses.add(refused)
    sender.nic.begin_batch()
    sender.nic.post_receive(sender.qpn, 41)
    sender.write(0)
    sender.write(1)
    assert sender.nic.poll() == []
    sender.nic.end_batch()
    received = [
        Completion(sender.qpn, CompletionKind.RECEIVE_IMM, wr_id, Status.FLUSHED) for wr_id in (40, 41)
    ]
    failed = sent((0, Status.REMOTE_OPERATION), (1, Status.FLUSHED), qpn=sender.qpn)
    assert sender.nic.poll() == failed + received
    device.refuses.clear()
    sender.write(2)
    assert sender.nic.poll() == sent((2, Status.FLUSHED), qpn=sender.qpn), "the device gets nothing more"


def test_a_queue_pair_that_goes_inside_a_batch_posts_nothing(device: StubbedDevice) -> None:
    sender = Sender()
    sender.nic.begin_batch()
    sender.write(0)
    sender.nic.post_receive(sender.qpn, 1)
    sender.nic.destroy_qp(sender.qpn)
    sender.nic.end_batch()
    assert (device.calls["post_send"], device.calls["post_recv"]) == (0, 0)
    assert [done.status for done in sender.nic.poll()] == [Status.FLUSHED] * 2
    assert [request.is_closed for request in device.writes] == [True]


@pytest.mark.parametrize(("receives", "calls"), [(1, 1), (8, 1), (9, 2), (20, 3)])
def test_receives_of_a_batch_are_posted_a_few_at_a_time(
    device: StubbedDevice, receives: int, calls: int
) -> None:
    sender = Sender()
    sender.nic.begin_batch()
    for wr_id in range(receives):
        sender.nic.post_receive(sender.qpn, wr_id)
    sender.nic.end_batch()
    assert device.calls["post_recv"] == calls
    serials = [serial for serial, _ in sender.nic.queue_pair(sender.qpn).posted[1]]
    assert device.received == serials


def test_few_bytes_go_with_their_request(device: StubbedDevice) -> None:
    sender = Sender()
    for nbytes in (128, 129, 0):
        sender.write(nbytes, nbytes=nbytes)
    assert [bool(chain[0].send_flags & _INLINE) for chain in device.chains] == [True, False, False]


def test_a_device_that_takes_no_bytes_with_a_request(device: StubbedDevice) -> None:
    device.inline_max = 0
    sender = Sender()
    sender.write(0, nbytes=40)
    assert not device.chains[0][0].send_flags & _INLINE


# ---- memory in parts


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PART_BYTES", 1000)


@pytest.mark.usefixtures("small_parts")
def test_a_write_from_several_parts_of_a_region(device: StubbedDevice) -> None:
    sender = Sender(nbytes=3500)
    assert device.calls["reg_mr"] == 1 + 4, "one for requests without bytes"
    sender.write(0, nbytes=1600, at=900)
    keys = [lkey for _, _, lkey in device.chains[0][0].sg]
    va = sender.region.va + 900
    assert [one[:2] for one in device.chains[0][0].sg] == [(va, 100), (va + 100, 1000), (va + 1100, 500)]
    assert len(set(keys)) == 3
    sender.write(1, nbytes=1000, at=1000)
    assert len(device.chains[1][0].sg) == 1
    sender.nic.deregister_memory(sender.region)
    assert device.calls["dereg_mr"] == 4
    with pytest.raises(LocalMisuse, match="not inside"):
        sender.write(2)


@pytest.mark.usefixtures("small_parts")
def test_memory_that_peers_write_to_has_one_key(device: StubbedDevice) -> None:
    sender = Sender()
    before = device.calls["reg_mr"]
    sender.nic.register_memory(memoryview(bytearray(3500)))
    assert device.calls["reg_mr"] == before + 1


@pytest.mark.usefixtures("small_parts")
def test_more_parts_than_a_write_may_have_are_refused_in_words(device: StubbedDevice) -> None:
    sender = Sender(nbytes=3500, segments_max=2)
    with pytest.raises(LocalMisuse, match="more segments than the 2"):
        sender.write(0, nbytes=2500)
    assert device.chains == []


@pytest.mark.usefixtures("small_parts")
def test_parts_of_what_cannot_be_registered_whole_are_given_back(
    device: StubbedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender()
    begun, refuse = device.calls["reg_mr"], device.call

    def call(name: str) -> Any:
        if device.calls["reg_mr"] == begun + 2:
            device.refuses.add("reg_mr")
        refuse(name)

    monkeypatch.setattr(device, "call", call)
    with pytest.raises(Exception, match="register memory"):
        sender.nic.register_memory(memoryview(bytes(3500)))
    assert device.calls["dereg_mr"] == 2


# ---- what hosts may wish for


def test_memory_may_be_written_in_any_order(device: StubbedDevice) -> None:
    relaxed = 1 << 20
    for wish in (0, 1):
        nic = VerbsNic(OWN, VerbsConfig(relaxed_ordering=wish))
        device.access.clear()
        nic.register_memory(memoryview(bytearray(8)))
        nic.register_memory(memoryview(bytes(8)))
        assert device.access == [3 | wish * relaxed, wish * relaxed]


def test_the_service_level_is_that_of_the_address(device: StubbedDevice) -> None:
    nic = VerbsNic(OWN, VerbsConfig())
    peer = QpAddress(OWN.mac, OWN.ip, 9, 0)
    for level in (0, 5):
        nic.connect_qp(nic.create_qp(psn=0).qpn, peer, QpAttributes(service_level=level))
        assert device.addresses[-1].sl == level
    with pytest.raises(LocalMisuse, match="service level 8"):
        nic.connect_qp(nic.create_qp(psn=0).qpn, peer, QpAttributes(service_level=8))


async def test_a_busy_nic_polls_before_it_waits(device: StubbedDevice, autojump_clock: object) -> None:
    """And does so again after each completion; then others have their turns."""
    sender = Sender(busy_polls=5)
    sender.write(0)
    [serial] = sender.serials
    before = device.calls["poll"]

    def at_poll() -> None:
        if device.calls["poll"] - before == 9:
            complete(device, sender, serial)

    device.at_call["poll"] = at_poll
    assert await sender.nic.wait_completions() == sent((0, Status.SUCCESS), qpn=sender.qpn)
    assert device.calls["poll"] - before == 9, "six of one turn, and three of the next"
    device.at_call.clear()
    await sender.nic.aclose()


async def test_a_busy_nic_to_which_nothing_comes_waits_for_an_event(
    device: StubbedDevice, autojump_clock: object
) -> None:
    sender = Sender(busy_polls=2)
    with trio.move_on_after(1) as waited:  # time passes only when all wait
        await sender.nic.wait_completions()
    assert waited.cancelled_caught
    assert device.calls["poll"] < 10_000
    await sender.nic.aclose()


async def test_a_nic_that_is_not_busy_polls_once(device: StubbedDevice, autojump_clock: object) -> None:
    sender = Sender()
    before = device.calls["poll"]
    with trio.move_on_after(1):
        await sender.nic.wait_completions()
    assert device.calls["poll"] - before == 1
    await sender.nic.aclose()
