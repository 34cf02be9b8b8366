"""The launchers of a job that was placed: an ``inaproto run`` for each of its hosts, here or by a command
that reaches another machine, and the end of all of them.

Each launcher gets the job's key by its standard input, where nobody else can read it, and ends when that
ends: so nothing runs on elsewhere when this process, or the connection, is gone.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from inaproto.errors import ConfigError
from inaproto.launch.processes import Ends, Process
from inaproto.launch.run import TICK_S, is_shielded, say
from inaproto.launch.supervision import ENDING, PASSED_ON, Action, Say, Send, Supervision

HOST_FIELD: Final = "{host}"
GRACE_S: Final = 30.0
"""More than each launcher gives its ranks."""
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Part:
    """What is started for one host of the job."""

    host: str
    command: tuple[str, ...]


def parts_of(
    *,
    job: str,
    hosts: Sequence[str],
    ranks_per_host: int,
    words: Sequence[str],
    here: Mapping[str, Path],
    on: str,
    there: Path | None,
    launcher: Sequence[str],
    options: Sequence[str] = (),
    work_dir: Path,
) -> list[Part]:
    """A part for each of ``hosts``, in their order.

    ``here``: host daemons of this machine, with their directories. ``on``: the command by which one more
    word, a line of shell, is run on the machine of ``{host}``; ``there``: the directory of host daemons on
    those. ``launcher``: the words of ``inaproto run`` up to its options; ``options``: further ones of it.
    Raises ``ConfigError`` for hosts that can be reached by neither.
    """
    reach = shlex.split(on)
    away = [host for host in hosts if host not in here]
    if away and not reach:
        running = ", ".join(here) or "none"
        raise ConfigError(
            f"job {job} is placed on {', '.join(hosts)}; of these {', '.join(away)} "
            f"{'do' if len(away) > 1 else 'does'} not run here (host daemons here: {running}): say how that "
            "machine is reached, such as --via 'ssh {host}'"
        )
    if reach and not any(HOST_FIELD in word for word in reach):
        raise ConfigError(f"--via: {on!r} does not say {HOST_FIELD}; for example --via 'ssh {HOST_FIELD}'")
    common = ["--job", job, "--hosts", ",".join(hosts), "-n", str(ranks_per_host), "--by-input", *options]
    if ranks_per_host * len(hosts) > 1:
        common.append("--label")
    if not away:
        common += ["--master-addr", LOOPBACK]
    found = []
    for index, host in enumerate(hosts):
        own = [*launcher, *common, "--host", host, "--host-index", str(index)]
        directory = here.get(host, there)
        if directory is not None:
            own += ["--dir", str(directory)]
        if index > 0:
            own.append("--quiet")  # all would say the same
        own += ["--", *words]
        if host in away:
            line = f"cd {shlex.quote(str(work_dir))} && exec {shlex.join(own)}"
            own = [*(word.replace(HOST_FIELD, host) for word in reach), line]
        found.append(Part(host, tuple(own)))
    return found


def run_parts(
    parts: Sequence[Part],
    key: str,
    environment: Mapping[str, str],
    until_over: Callable[[], str],
    *,
    is_elastic: bool = False,
) -> int:
    """Run them all; the exit status, as ``inaproto run`` has it.

    ``until_over`` returns, in a thread, when the job is over for its controller, and says how. With
    ``is_elastic`` the others go on when one ends badly.
    """
    return trio.run(_Parts(parts, key, environment, is_elastic=is_elastic).main, until_over)


class _Parts:
    def __init__(
        self, parts: Sequence[Part], key: str, environment: Mapping[str, str], *, is_elastic: bool
    ) -> None:
        self._parts, self._key, self._environment = parts, key, environment
        names = {index: f"the launcher on {part.host}" for index, part in enumerate(parts)}
        self._supervision = Supervision(range(len(parts)), GRACE_S, is_elastic=is_elastic, names=names)
        self._processes: list[Process] = []
        self._inputs: list[int] = []
        self._over = trio.Event()

    async def main(self, until_over: Callable[[], str]) -> int:
        heard = [number for number in (*ENDING, *PASSED_ON) if not is_shielded(number)]
        with trio.open_signal_receiver(*heard) as signals:
            try:
                for part in self._parts:
                    self._start(part)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_signals, signals)
                    nursery.start_soon(self._keep_time)
                    nursery.start_soon(self._end_when_over, until_over)
                    nursery.start_soon(self._watch_ends)
                    await self._over.wait()
                    nursery.cancel_scope.cancel()
            finally:
                with trio.CancelScope(shield=True):
                    await self._take_down()
        return self._supervision.status

    def _start(self, part: Part) -> None:
        reads, writes = os.pipe()
        try:
            process = Process(part.host, self._command(part), self._environment, stdin=reads)
        finally:
            os.close(reads)
        self._processes.append(process)
        self._inputs.append(writes)
        with suppress(BrokenPipeError):  # it has ended, and says why
            os.write(writes, f"{self._key}\n".encode())

    def _command(self, part: Part) -> Sequence[str]:
        program = shutil.which(part.command[0], path=self._environment.get("PATH"))
        if program is None:
            raise ConfigError(f"--via: {part.command[0]}: there is no such program")
        return (program, *part.command[1:])

    async def _watch_ends(self) -> None:
        with closing(Ends(dict(enumerate(self._processes)))) as ends:
            while ends:
                found = await ends.next()
                self._perform(self._supervision.ended(found, trio.current_time()))
        self._over.set()

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            self._perform(self._supervision.signalled(signal.Signals(number), trio.current_time()))

    async def _keep_time(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self._perform(self._supervision.due(trio.current_time()))

    async def _end_when_over(self, until_over: Callable[[], str]) -> None:
        how = await trio.to_thread.run_sync(until_over, abandon_on_cancel=True)
        with trio.move_on_after(GRACE_S):
            await self._over.wait()  # ranks that have left end by themselves
            return
        say(f"the job is over for its controller ({how})")
        self._perform(self._supervision.over(trio.current_time()))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Say(text):
                    say(text)
                case Send(number, indices):
                    for index in indices:
                        self._processes[index].send(number)

    async def _take_down(self) -> None:
        async with trio.open_nursery() as nursery:
            for process in self._processes:
                if process.code is None:
                    nursery.start_soon(process.end, GRACE_S)
        for process in self._processes:
            process.close()
        for descriptor in self._inputs:
            os.close(descriptor)
