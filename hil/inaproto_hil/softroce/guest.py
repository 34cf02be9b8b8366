"""A guest: one small virtual machine whose kernel has RoCE hosts, the bench outside as their wire.

QEMU runs it by emulation, without privileges. Each host's NIC is a stream connection to a frame port of
the bench or of a switch daemon, which must listen before the guest is started. Programs run in the guest by
way of its agent; the guest ends with the ``async with`` block, whatever happens in it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import trio

from inaproto.errors import InaprotoError
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.network import (
    CONTROL_GATEWAY,
    CONTROL_MAC,
    CONTROL_NETWORK,
    ROCE_OVERHEAD,
    GuestHost,
    set_up,
)
from inaproto_hil.softroce.packages import program
from inaproto_hil.softroce.progress import hangs

BOOT_CPU_S_MAX: Final = 1200.0
"""Processor time that a boot may take; a dozen seconds are usual."""
BOOT_RESTS_MAX: Final = 300
"""Seconds that a guest may spend asleep meanwhile: one that boots has something to do."""
PROGRAM_S_MAX: Final = 3600.0
"""For a program in the guest that hangs: none takes so long, however busy the machine is."""
MEMORY_MB: Final = 512
_KERNEL_LINE: Final = "console=ttyS0 quiet panic=-1 tsc=unstable no_timer_check mitigations=off"
_LOG_LINES: Final = 30


class GuestFailed(InaprotoError):
    """The guest did not boot, or ended by itself; with the end of its console."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program in the guest ended."""

    rc: int
    out: str
    err: str


@contextlib.contextmanager
def guest_failure_alone() -> Iterator[None]:
    """What failed under nurseries comes out as the ``GuestFailed`` that it is, if it is nothing else."""
    try:
        yield
    except BaseExceptionGroup as group:
        failed, rest = group.split(GuestFailed)
        if rest is not None or failed is None:
            raise
        first: GuestFailed | ExceptionGroup[GuestFailed] = failed
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None


class Guest:
    """Programs in the guest, several at a time."""

    def __init__(
        self, hosts: Sequence[GuestHost], out: Path, stream: trio.SocketStream, console: Path
    ) -> None:
        self.hosts = hosts
        self.out = out
        """What programs in the guest write to ``/out`` is here, for as long as the guest runs."""
        self._stream = stream
        self._console = console
        self._next = 0
        self._waiting: dict[int, trio.Event] = {}
        self._ended: dict[int, Ended] = {}
        self._sinks: dict[int, Callable[[str], None]] = {}
        self._sending = trio.Lock()
        self._gone = False

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "/",
        timeout: float = PROGRAM_S_MAX,
        on_line: Callable[[str], None] | None = None,
    ) -> Ended:
        """Raises ``GuestFailed`` when the guest ends, or the time is over; the program is ended then.

        ``on_line`` gets each line of its output as it comes, and ``Ended.out`` is empty then.
        """
        self._next += 1
        number = self._next
        event = self._waiting[number] = trio.Event()
        request = {"id": number, "argv": list(argv), "env": dict(env or {}), "cwd": str(cwd)}
        if on_line is not None:
            self._sinks[number] = on_line
            request["lines"] = True
        try:
            with trio.fail_after(timeout):
                await self._send(request)
                await event.wait()
        except trio.TooSlowError:
            await self._send({"id": number, "kill": True})
            said = f"{shlex.join(argv)} was not done after {timeout:g} s"
            raise GuestFailed(f"{said}{self.console_end()}") from None
        finally:
            del self._waiting[number]
            self._sinks.pop(number, None)
        if number not in self._ended:
            raise GuestFailed(f"the guest is gone{self.console_end()}")
        return self._ended.pop(number)

    async def _send(self, request: dict[str, Any]) -> None:
        if self._gone:
            raise GuestFailed(f"the guest is gone{self.console_end()}")
        async with self._sending:
            await self._stream.send_all(json.dumps(request).encode() + b"\n")

    async def listen(self) -> None:
        """Take the agent's answers until the guest is gone."""
        rest = b""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in self._stream:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    answer = json.loads(line)
                    if "line" in answer:
                        if answer["id"] in self._sinks:
                            self._sinks[answer["id"]](answer["line"])
                    elif answer["id"] in self._waiting:
                        self._ended[answer["id"]] = Ended(answer["rc"], answer["out"], answer["err"])
                        self._waiting[answer["id"]].set()
        self._gone = True
        for event in self._waiting.values():
            event.set()

    def console_end(self) -> str:
        return _end_of(self._console)


@asynccontextmanager
async def boot(
    image: Image,
    ports: Sequence[Path],
    *,
    mtu: int = 1024,
    vlan: int | None = None,
    ipv6: bool = False,
    memory_mb: int = MEMORY_MB,
    folder: Path | None = None,
) -> AsyncIterator[Guest]:
    """A running guest, with one host for each of ``ports``: the sockets that their NICs are connected to.

    ``mtu``: of RoCE paths, in bytes; ``vlan``: in which they are, if in any; ``ipv6``: their addresses are
    of it. Raises ``GuestFailed``.
    """
    hosts = [GuestHost(number, ipv6) for number in range(1, len(ports) + 1)]
    with tempfile.TemporaryDirectory(prefix="ina-guest-", dir=folder) as work:
        console = Path(work, "console.log")
        token = secrets.token_hex(16)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        (listener,) = listeners
        agent_port = listener.socket.getsockname()[1]
        ethernet_mtu = max(1500, mtu + ROCE_OVERHEAD)
        job = set_up(hosts, ethernet_mtu=ethernet_mtu, vlan=vlan) + _agent(agent_port, token)
        out, log = _shared(Path(work), job, console)
        command = _command(image, hosts, ports, out, host_mtu=ethernet_mtu, memory_mb=memory_mb)
        async with trio.open_nursery() as nursery:
            with log:
                process: trio.Process = await nursery.start(
                    partial(
                        trio.run_process,
                        command,
                        stdin=b"",
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        check=False,
                    )
                )
            try:
                async with listener:
                    stream = await _agent_of(listener, token, process, console)
                async with stream:
                    guest = Guest(hosts, out, stream, console)
                    nursery.start_soon(guest.listen)
                    yield guest
            finally:
                nursery.cancel_scope.cancel()


def _shared(work: Path, job: str, console: Path) -> tuple[Path, IO[bytes]]:
    """The folder that is the guest's ``/out``, and where its console goes."""
    out = work / "out"
    out.mkdir()
    (out / "job.sh").write_text(job, encoding="utf-8")
    return out, console.open("wb")


async def _agent_of(
    listener: trio.SocketListener, token: str, process: trio.Process, console: Path
) -> trio.SocketStream:
    """The connection of the guest's agent; whoever does not know the token is hung up on."""
    async with trio.open_nursery() as nursery:

        async def fail_at_end() -> None:
            await process.wait()
            raise GuestFailed(f"the guest ended while it booted{_end_of(console)}")

        async def fail_when_it_hangs() -> None:
            why = await hangs(process.pid, rests_max=BOOT_RESTS_MAX, cpu_s_max=BOOT_CPU_S_MAX)
            raise GuestFailed(f"the guest does not come up: {why}{_end_of(console)}")

        nursery.start_soon(fail_at_end)
        nursery.start_soon(fail_when_it_hangs)
        while True:
            stream = await listener.accept()
            said = b""
            while not said.endswith(b"\n") and len(said) <= len(token):
                more = await stream.receive_some(len(token) + 1 - len(said))
                if not more:
                    break
                said += more
            if secrets.compare_digest(said, token.encode() + b"\n"):
                nursery.cancel_scope.cancel()
                return stream
            await stream.aclose()


def _agent(port: int, token: str) -> str:
    path = ":".join(sys.path)
    environment = f"PYTHONPATH={shlex.quote(path)} PYTHONDONTWRITEBYTECODE="
    arguments = f"{CONTROL_GATEWAY} {port} {token}"
    return f"{environment} exec {shlex.quote(sys.executable)} -P -m inaproto_hil.softroce.agent {arguments}\n"


def _command(
    image: Image,
    hosts: Sequence[GuestHost],
    ports: Sequence[Path],
    out: Path,
    *,
    host_mtu: int,
    memory_mb: int,
) -> list[str]:
    command = [
        program("qemu-system-x86_64"),
        *("-M", "pc,usb=off", "-accel", "tcg", "-cpu", "max", "-m", str(memory_mb), "-smp", "1"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", _KERNEL_LINE),
        *("-fsdev", "local,id=r,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=r,mount_tag=hostroot"),
        *("-fsdev", f"local,id=o,path={out},security_model=none"),
        *("-device", "virtio-9p-pci,fsdev=o,mount_tag=hostout"),
        *("-netdev", f"user,id=control,net={CONTROL_NETWORK},ipv6=off"),
        *("-device", f"virtio-net-pci,netdev=control,mac={CONTROL_MAC},romfile="),
    ]
    for host, port in zip(hosts, ports, strict=True):
        name = f"n{host.number}"
        command += ["-netdev", f"stream,id={name},server=off,addr.type=unix,addr.path={port}"]
        device = f"virtio-net-pci,netdev={name},mac={host.mac},romfile=,host_mtu={host_mtu}"
        command += ["-device", device]
    return command


def _end_of(console: Path) -> str:
    lines = console.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return "; the end of its console:\n" + "\n".join(lines) if lines else "; its console is empty"
