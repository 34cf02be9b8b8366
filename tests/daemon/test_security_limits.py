"""Floods and dawdlers at the control port: what each can take is bounded, and honest peers get in."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.ca.identity import Role
from inaproto.daemon.net.control_address import Endpoint, TlsDoor
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.net.session_rules import SessionLimits
from inaproto.daemon.net.tcp_stream import TcpStream
from inaproto.daemon.net.tls import Credentials
from inaproto.daemon.net.tls_listener import TlsLimits, TlsListener, group_of, listen_tls
from inaproto.wire.control_messages import Error, Ping, Pong, Welcome, encode_message
from tests.clusters.secure import LOOPBACK, SPINE, Deployment, secure_switch
from tests.clusters.switch import ControlHost
from tests.daemon.test_security_tls import end_of
from tests.unit.rendezvous_members import hello


class Listening:
    def __init__(self, listener: TlsListener, deployment: Deployment) -> None:
        self.listener = listener
        self.deployment = deployment

    def dial(self, source: str = LOOPBACK) -> TcpStream:
        """A stranger from that address of this machine, who has not said a word."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind((source, 0))
        sock.connect((LOOPBACK, self.listener.port))
        return TcpStream(sock)

    async def honest(self) -> None:
        """A host of this deployment gets in."""
        door = TlsDoor(Endpoint(LOOPBACK, self.listener.port, SPINE), Credentials(self.deployment.host("h0")))
        stream = await door.connect()
        (await self.listener.accept()).close()
        stream.close()

    @property
    def refused(self) -> dict[str, int]:
        found: dict[str, int] = self.listener.status()["refused"]
        return found

    async def until_refused(self, code: str, times: int) -> None:
        while self.refused.get(code, 0) < times:
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def listening(directory: Path, limits: TlsLimits) -> AsyncIterator[Listening]:
    deployment = Deployment(directory)
    tls = deployment.issue(Role.SWITCH, SPINE, addresses=[LOOPBACK])
    listener = await listen_tls(LOOPBACK, 0, Credentials(tls), limits)
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run)
            yield Listening(listener, deployment)
            listener.close()


async def test_a_handshake_that_dawdles_is_cut_off(tmp_path: Path, mock_clock: MockClock) -> None:
    """Slow-loris: a byte now and then keeps no connection open."""
    async with listening(tmp_path, TlsLimits()) as port:
        slow = port.dial()
        for byte in b"\x16\x03\x01\x02":
            slow.send_nowait(memoryview(bytes([byte])))
            await wait_all_tasks_blocked()
            mock_clock.jump(1.3)
        assert await end_of(slow) == b""
        assert port.refused == {"handshake_slow": 1}
        await port.honest()


async def test_one_address_cannot_take_all_handshakes(tmp_path: Path) -> None:
    async with listening(tmp_path, TlsLimits(handshakes_max=8, handshakes_of_address_max=3)) as port:
        slow = [port.dial("127.0.0.9") for _ in range(5)]
        await port.until_refused("too_many_handshakes", 2)
        await port.honest()
        for stream in slow:
            stream.close()


async def test_many_addresses_cannot_either(tmp_path: Path) -> None:
    """The oldest handshake makes room: that of an honest peer is over long since."""
    async with listening(tmp_path, TlsLimits(handshakes_max=4)) as port:
        slow = [port.dial(f"127.0.0.{number}") for number in range(10, 20)]
        await port.until_refused("made_room", 6)
        await port.honest()
        assert port.listener.status()["handshakes"] == 3
        for stream in slow:
            stream.close()


async def test_a_flood_of_connections_is_dropped_before_it_costs(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    limits = TlsLimits(connections_burst=10, connections_per_s=2, handshakes_of_address_max=100)
    async with listening(tmp_path, limits) as port:
        flood = [port.dial("127.0.0.9") for _ in range(25)]
        await port.until_refused("connection_flood", 15)
        await port.honest()
        for stream in flood:
            stream.close()
        mock_clock.jump(1)  # two more
        flood = [port.dial("127.0.0.9") for _ in range(5)]
        await port.until_refused("connection_flood", 18)
        for stream in flood:
            stream.close()


async def test_a_flood_of_connections_keeps_no_other_task_waiting(tmp_path: Path) -> None:
    """Who connects faster than connections are dropped would else have the daemon to himself."""
    async with listening(tmp_path, TlsLimits(connections_burst=1, connections_per_s=0)) as port:
        flood = [port.dial("127.0.0.9") for _ in range(100)]
        turns = 0
        while port.refused.get("connection_flood", 0) < 99:
            await trio.lowlevel.checkpoint()
            turns += 1
        assert turns >= 50
        for stream in flood:
            stream.close()


async def test_sessions_of_an_address_are_limited_and_given_back(tmp_path: Path) -> None:
    async with listening(tmp_path, TlsLimits(sessions_of_address_max=1)) as port:
        for _ in range(3):
            await port.honest()
        door = TlsDoor(Endpoint(LOOPBACK, port.listener.port, SPINE), Credentials(port.deployment.host()))
        first = await door.connect()
        accepted = await port.listener.accept()
        assert await end_of(port.dial()) == b""
        assert port.refused == {"too_many_sessions": 1}
        accepted.close()
        first.close()
        await port.honest()


async def test_addresses_take_no_memory_for_ever(tmp_path: Path, mock_clock: MockClock) -> None:
    async with listening(tmp_path, TlsLimits(addresses_max=2)) as port:
        for number in (11, 12, 13):
            await end_of_closing(port.dial(f"127.0.0.{number}"))
        await port.until_refused("too_many_addresses", 1)
        mock_clock.jump(1)
        await port.honest()
        assert len(port.listener._addresses) == 1


async def end_of_closing(stream: TcpStream) -> None:
    stream.close()
    await wait_all_tasks_blocked()


async def test_a_handshake_has_a_size(tmp_path: Path) -> None:
    """Records of a hello that never ends."""
    async with listening(tmp_path, TlsLimits()) as port:
        big = port.dial()
        hello_of_1_mib = b"\x01" + (1 << 20).to_bytes(3, "big")
        record = b"\x16\x03\x01" + (1 << 14).to_bytes(2, "big")
        data = memoryview(record + hello_of_1_mib + bytes((1 << 14) - 4) + (record + bytes(1 << 14)) * 8)
        with trio.fail_after(600):
            while data and not big.peer_is_gone():
                try:
                    data = data[big.send_nowait(data) :]
                except BlockingIOError:
                    await trio.lowlevel.checkpoint()
                except OSError:
                    break
        await end_of(big)
        [code] = port.refused
        assert code in {"handshake_bytes", "bad_tls"}


def test_an_ipv6_network_is_one_address() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:2") == "2001:db8::/64"
    assert group_of("2001:db8:0:1::1") != group_of("2001:db8::1")
    assert group_of("fe80::1%eth0") == "fe80::/64"
    assert group_of("192.0.2.1") == "192.0.2.1"


# --- who has a certificate, and means ill


async def test_hellos_come_soon_or_not_at_all(runtime_dir: Path, mock_clock: MockClock) -> None:
    """Pings do not keep a session without hello alive."""
    async with secure_switch(runtime_dir) as switch:
        stream = await switch.connect(switch.deployment.host())
        for id in range(3):
            await stream.send(Ping(id=id))
            assert await stream.receive() == Pong(id=id)
            mock_clock.jump(1.9)
        answer = await ControlHost(stream).expect(Error)
        assert isinstance(answer, Error)
        assert answer.code == "hello_slow"
        assert await switch.cut() == {"hello_slow": 1}


async def test_nobody_needs_so_many_bytes_for_a_hello(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        stream = await switch.connect(switch.deployment.host())
        await stream.send(Error(code="x", message="x" * 8000))
        answer = await ControlHost(stream).expect(Error)
        assert isinstance(answer, Error)
        assert "more bytes than anybody needs" in answer.message


async def test_oversized_frames_end_the_session(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        host = await switch.host(0)
        await host.expect(Welcome)
        host.stream._stream.send_nowait(memoryview(b"\x7f\xff\xff\xff"))
        answer = await host.expect(Error)
        assert isinstance(answer, Error)
        assert "length prefix" in answer.message
        await host.expect_end()


async def test_a_flood_of_messages_ends_the_session_and_no_other(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        honest = await switch.host(1)
        await honest.expect(Welcome)
        host = await switch.host(0)
        await host.expect(Welcome)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.stream.run)
            nursery.start_soon(flood, host.stream, SessionLimits().messages_burst + 5000)
            await host.expect_end()  # why may be lost: what it has sent meanwhile resets the connection
            nursery.cancel_scope.cancel()
        await honest.stream.send(Ping(id=7))
        assert await honest.expect(Pong) == Pong(id=7)
        assert await switch.cut() == {"message_flood": 1}


async def flood(stream: ControlStream, count: int) -> None:
    data = encode_message(Ping(id=1)) * 100
    left = memoryview(b"")
    sent = 0
    while sent < count or left:
        if not left:
            left, sent = memoryview(data), sent + 100
        try:
            left = left[stream._stream.send_nowait(left) :]
        except BlockingIOError:
            await stream._stream.wait_sendable()
        except OSError:
            return
        await trio.lowlevel.checkpoint()


async def test_a_session_ends_when_its_certificate_does(runtime_dir: Path, mock_clock: MockClock) -> None:
    """A stolen certificate is worth nothing after its time, even by a connection that was made before."""
    async with secure_switch(runtime_dir) as switch:
        begun = datetime.now(UTC) - timedelta(hours=1)
        short = switch.deployment.issue(Role.HOST, "h0", now=begun, days=1 / 24 + 8 / 86400)
        host = ControlHost(await switch.connect(short))
        await host.stream.send(hello(0))
        await host.expect(Welcome)
        mock_clock.jump(8.5)
        answer = await host.expect(Error)
        assert isinstance(answer, Error)
        assert answer.code == "certificate_expired"


async def test_renewed_certificates_are_taken_up_and_broken_ones_are_not(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        before = (await switch.listener())["credentials"]["serial"]
        tls = switch.deployment.issue(Role.SWITCH, SPINE, addresses=[LOOPBACK])
        await (await switch.host(0)).expect(Welcome)
        told = (await switch.listener())["credentials"]
        assert told["serial"] != before
        assert (told["reloads"], told["error"]) == (1, "")
        (tls / "cert.pem").write_text("half a certificate")
        await (await switch.host(1)).expect(Welcome)  # by what was good before
        told = (await switch.listener())["credentials"]
        assert told["reloads"] == 1
        assert str(tls) in told["error"]


@pytest.mark.parametrize("name", ["cert.pem", "key.pem", "ca.pem"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    tls = Deployment(tmp_path).host()
    (tls / name).unlink()
    with pytest.raises(Exception, match=rf"{name}: No such file.*inaproto ca issue"):
        Credentials(tls)
