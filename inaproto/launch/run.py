"""One start: daemons, ranks, their output, signals, and the end of all of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.daemon.net.unix_sockets import require_path_fits
from inaproto.errors import ConfigError, InaprotoError, RankLost
from inaproto.launch.advice import SILENT_S, Processors, about_ranks, about_silence
from inaproto.launch.daemons import (
    END_S,
    RESTARTS_MAX,
    Daemons,
    Wanted,
    bring_up,
    find_daemons,
    log_tail,
    start_again,
    statuses,
)
from inaproto.launch.gone_ranks import gone_ranks
from inaproto.launch.keeper import end_all, marked
from inaproto.launch.outcome import Observed
from inaproto.launch.output import LOOKS, READ_BYTES, Copier, Output, until_ended
from inaproto.launch.plan import Wish, environments, may_lack_inaproto, redirected
from inaproto.launch.processes import Ends, Keeper, Process
from inaproto.launch.supervision import (
    ENDING,
    PASSED_ON,
    Action,
    Say,
    Send,
    Supervision,
    exit_status,
    how_it_ended,
)

LOOK_S: Final = 1.0
"""Between questions to the daemons."""
TICK_S: Final = 0.1
ASK_S: Final = 3.0
STANDARD_OUTPUT: Final = "-"


@dataclass(frozen=True, slots=True)
class Manner:
    """How a start is run, beside what is started."""

    is_labelled: bool = False
    grace_s: float = 10.0
    is_elastic: bool = False
    is_quiet: bool = False
    summary: str = ""
    """File for the outcome as JSON, or ``-``; empty: none."""
    logs: Path | None = None
    """Directory in which the daemons' logs are kept; None: they go with the run."""
    ends_with_input: bool = False
    """When the standard input ends all ends, as by SIGTERM; ranks have none then."""


def say(text: str) -> None:
    """To the standard error, each line with our name."""
    with suppress(OSError):
        for line in text.splitlines():
            sys.stderr.write(f"inaproto run: {line}\n")
        sys.stderr.flush()


@contextmanager
def private_directory() -> Iterator[Path]:
    """A new directory (0700) of a short path, for sockets and logs; it is removed."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for base in (runtime, tempfile.gettempdir(), "/tmp"):
        if not base or not os.access(base, os.W_OK):
            continue
        path = Path(tempfile.mkdtemp(prefix="inaproto-run-", dir=base))
        try:
            require_path_fits(path / ("x" * 24), "inaproto run")
        except ConfigError:
            path.rmdir()
            continue
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return
    raise ConfigError("inaproto run: no directory can be made for sockets, neither in $TMPDIR nor in /tmp")


@dataclass(slots=True)
class Run:
    """The parts of one start."""

    wish: Wish
    wanted: Wanted
    manner: Manner
    directory: Path
    keeper: Keeper
    supervision: Supervision
    environment: Mapping[str, str]
    daemons: Daemons | None = None
    ranks: dict[int, Process] = field(default_factory=dict)
    all_started: list[Process] = field(default_factory=list)
    observed: Observed = field(default_factory=Observed)
    processors: Processors = field(default_factory=Processors)
    finished: int = 0
    """Ranks that have ended, and whose output has been written."""
    over: trio.Event = field(default_factory=trio.Event)
    """No rank runs any more."""
    stop: trio.Event = field(default_factory=trio.Event)
    is_stopped: bool = False
    """By a signal."""
    is_asked_to_end: trio.Event = field(default_factory=trio.Event)
    """By a signal, or by the end of the input."""
    stopped_by: signal.Signals | None = None
    """A signal that came before any rank was there."""
    daemons_end: bool = False
    """From now on daemons end because they are told to."""
    began: float = field(default_factory=time.monotonic)
    copier: Copier = field(default_factory=Copier)

    def tell(self, text: str) -> None:
        if not self.manner.is_quiet:
            say(text)

    @property
    def logs(self) -> Path:
        return self.directory if self.manner.logs is None else self.manner.logs

    async def main(self) -> int:
        """The exit status."""
        heard = [number for number in (*ENDING, *PASSED_ON) if not is_shielded(number)]
        with trio.open_signal_receiver(*heard) as signals:
            async with trio.open_nursery() as watching:
                watching.start_soon(self._watch_signals, signals)
                if self.manner.ends_with_input:
                    watching.start_soon(self._watch_input)
                try:
                    with trio.CancelScope() as scope:
                        watching.start_soon(self._cancel_when_stopped, scope)
                        async with trio.open_nursery() as nursery:
                            await self._bring_up(nursery)
                            scope_of_ranks = nursery.cancel_scope
                            self._start_ranks(nursery)
                            await self.over.wait()
                            await self._observe()
                            await self._let_the_first_go_first()
                            scope_of_ranks.cancel()
                finally:
                    with trio.CancelScope(shield=True):
                        await self._take_down()
                watching.cancel_scope.cancel()
        if self.stopped_by is not None and not self.ranks:
            return 128 + self.stopped_by
        return self.supervision.status

    async def _cancel_when_stopped(self, scope: trio.CancelScope) -> None:
        await self.stop.wait()
        scope.cancel()

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            self._signalled(signal.Signals(number))

    def _signalled(self, number: signal.Signals) -> None:
        if number in ENDING:
            self.is_asked_to_end.set()
        if self.ranks:
            self.is_stopped = self.is_stopped or number in ENDING
            self._perform(self.supervision.signalled(number, trio.current_time()))
        elif number in ENDING:
            self.stopped_by = number
            self.stop.set()

    async def _watch_input(self) -> None:
        while await trio.to_thread.run_sync(os.read, 0, READ_BYTES, abandon_on_cancel=True):
            pass
        self._signalled(signal.SIGTERM)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Say(text):
                    say(text)
                case Send(number, ranks):
                    for rank in ranks:
                        self.ranks[rank].send(number)

    # --- daemons

    async def _bring_up(self, nursery: trio.Nursery) -> None:
        found = await find_daemons(self.wanted, self.environment, self.directory)
        if isinstance(found, Path):
            if self.wish.ranks < (self.wanted.hosts or 1):
                raise ConfigError(
                    f"--daemons: {self.wanted.hosts} host daemons for {self.wish.ranks} "
                    f"rank{'s' if self.wish.ranks > 1 else ''}: each serves one at least"
                )
            found = await bring_up(
                found, self.wanted, self.environment, self.keeper.run, self.logs, self.all_started.append
            )
        elif len(found.sockets) > self.wish.ranks:
            found.sockets, found.names = found.sockets[: self.wish.ranks], found.names[: self.wish.ranks]
        self.daemons = found
        for process in found.started:
            nursery.start_soon(self._watch_daemon, process)
        size = f"{self.wish.ranks} rank{'s' if self.wish.ranks > 1 else ''}"
        if self.wish.hosts:
            first, last = self.wish.first_rank, self.wish.first_rank + self.wish.ranks - 1
            size = f"rank{f' {first}' if first == last else f's {first} to {last}'} of {self.wish.size}"
        self.tell(f"{size} of job {self.wish.job}, by {found.description()}")
        if redirected(self.wish):
            self.tell(redirected(self.wish))
        if advice := about_ranks(self.wish.size, len(found.sockets) * max(1, len(self.wish.hosts))):
            self.tell(advice)
        await self._observe()
        nursery.start_soon(self._observe_often)

    async def _watch_daemon(self, process: Process) -> None:
        restarts = 0
        while True:
            code = await process.wait()
            if self.daemons_end:
                return
            tail = log_tail(process.name, self.logs)
            outlives = process.name == "switch" or len(self.daemons.names if self.daemons else ()) > 1
            if not outlives or restarts == RESTARTS_MAX:
                say(f"{process.name}, which this run needs, {how_it_ended(code)}{tail}")
                return
            restarts += 1
            what = "the switch" if process.name == "switch" else f"host daemon {process.name}"
            say(f"{what} {how_it_ended(code)}; it is started again{tail}")
            process = start_again(process, self.logs)
            self.all_started.append(process)

    async def _observe(self) -> None:
        if self.daemons is not None:
            with trio.move_on_after(ASK_S):
                self.observed.take(*await statuses(self.daemons))
            if self.observed.is_sent:
                self.processors.look(time.monotonic())

    async def _observe_often(self) -> None:
        silent_until = trio.current_time() + SILENT_S
        while True:
            await trio.sleep(LOOK_S)
            await self._observe()
            if trio.current_time() >= silent_until and not self.observed.has_joined:
                silent_until = math.inf
                self.tell(about_silence(self.wish.size))

    # --- ranks

    def _start_ranks(self, nursery: trio.Nursery) -> None:
        assert self.daemons is not None
        labelled = self.manner.is_labelled
        pipe = subprocess.PIPE if labelled else None
        places = environments(
            self.wish,
            self.daemons.sockets,
            self.keeper.run,
            inherited=self.environment,
            cores=len(os.sched_getaffinity(0)),
            is_labelled=labelled,
        )
        for local, environment in enumerate(places):
            rank = self.wish.first_rank + local
            process = Process(
                f"rank {rank}",
                self.wish.command,
                environment,
                stdin=None if local == 0 and not self.manner.ends_with_input else subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
            )
            self.all_started.append(process)
            self.ranks[rank] = process
        outputs = {rank: Output() for rank in self.ranks}
        for rank, process in self.ranks.items():
            nursery.start_soon(self._watch_output, rank, process, outputs[rank])
        nursery.start_soon(self._watch_ends, outputs)
        nursery.start_soon(self._keep_time)

    async def _watch_output(self, rank: int, process: Process, output: Output) -> None:
        async with trio.open_nursery() as nursery:
            if self.manner.is_labelled:
                for source, target, event in (
                    (process.stdout, 1, output.out),
                    (process.stderr, 2, output.err),
                ):
                    nursery.start_soon(self.copier.copy, process, source, target, f"[{rank}] ", event)
            await output.is_told.wait()
            if self.manner.is_labelled:
                await until_ended(output.ends, self._waits_for_a_reader, looks=1)
            self.finished += 1
            if self.finished == len(self.ranks):
                self.over.set()

    async def _watch_ends(self, outputs: Mapping[int, Output]) -> None:
        with closing(Ends(self.ranks)) as ends:
            while ends:
                found = news = await ends.next()
                while failed := [rank for rank, code in news if code]:
                    if self.manner.is_labelled:
                        await until_ended([end for rank in failed for end in outputs[rank].ends])
                    news = ends.now()
                    found = found + news
                await self._hear_of(rank for rank, code in found if code)
                # Others are to hear of it now, however slow somebody reads what these ranks have said.
                self._perform(self.supervision.ended(found, trio.current_time()))
                for rank, _ in found:
                    outputs[rank].is_told.set()

    async def _hear_of(self, failed: Iterable[int]) -> None:
        """Who went from the job first, as daemons know; they may be about to see these go."""
        awaited = set(failed)
        sessions = {process.pid: rank for rank, process in self.ranks.items()}
        for _ in range(LOOKS):
            if not awaited or self.daemons is None:
                return
            hosts, _ = await statuses(self.daemons)
            found = gone_ranks(hosts, sessions, time.monotonic() - self.began)
            self.supervision.heard(found.by_themselves, found.told)
            awaited &= found.here
            if awaited:
                await trio.sleep(TICK_S)

    async def _keep_time(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self._perform(self.supervision.due(trio.current_time()))

    def _waits_for_a_reader(self) -> bool:
        """And nobody wants all to end."""
        return not self.is_stopped and self.copier.is_writing

    # --- the end

    async def _let_the_first_go_first(self) -> None:
        """Whoever has started launchers on several machines names the one that ends first.

        It is not to be this one, if its ranks ended because one was lost that may be elsewhere. Whose
        launcher that is has others to end, and may take its grace twice.
        """
        has_others = self.manner.ends_with_input and self.wish.size > self.wish.ranks
        is_due_to_others = self.supervision.told.startswith(RankLost.__name__) and not self.manner.is_elastic
        if has_others and is_due_to_others:
            with trio.move_on_after(2 * self.manner.grace_s):
                await self.is_asked_to_end.wait()

    async def _take_down(self) -> None:
        """Nothing that was started is left when this returns."""
        running = [process for process in self.ranks.values() if process.code is None]
        async with trio.open_nursery() as nursery:
            for process in running:
                nursery.start_soon(process.end, self.manner.grace_s)
        self.daemons_end = True
        rest = [process for process in self.all_started if process.name not in self._rank_names()]
        async with trio.open_nursery() as nursery:
            for process in rest:
                nursery.start_soon(process.end, END_S)
        if marked(self.keeper.mark):
            count = await trio.to_thread.run_sync(end_all, self.keeper.mark)
            self.tell(f"{count} process{'es' if count > 1 else ''} that ranks had left behind ended now")
        for process in self.all_started:
            process.close()

    def _rank_names(self) -> set[str]:
        return {process.name for process in self.ranks.values()}

    def outcome(self, status: int) -> dict[str, Any]:
        """What ``--json`` writes."""
        failure = self.supervision.failure
        return {
            "job": self.wish.job,
            "ranks": self.wish.ranks,
            "size": self.wish.size,
            "hosts": list(self.wish.hosts),
            "exit_status": status,
            "first_failure": None
            if failure is None
            else {
                "rank": failure.rank,
                "exit_status": exit_status(failure.code),
                "how": how_it_ended(failure.code),
            },
            "seconds": round(time.monotonic() - self.began, 3),
            "daemons": {
                "directory": str(self.daemons.directory) if self.daemons and self.daemons.directory else None,
                "hosts": self.daemons.names if self.daemons else [],
                "started_here": bool(self.daemons and self.daemons.started),
            },
            "redirected": list(self.wish.backends),
            "processors_share": self.processors.share,
            **self.observed.as_dict(),
        }


def is_shielded(number: signal.Signals) -> bool:
    """Whether it is to pass by, as ``nohup`` wishes. (Shells ignore SIGINT for what is in the background.)"""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def launch(wish: Wish, wanted: Wanted, manner: Manner, environment: Mapping[str, str]) -> int:
    """Run it; the exit status. Raises ``ConfigError`` or ``DaemonFailed`` before ranks are started."""
    with private_directory() as directory:
        keeper = Keeper(directory)
        ranks = range(wish.first_rank, wish.first_rank + wish.ranks)
        supervision = Supervision(ranks, manner.grace_s, is_elastic=manner.is_elastic)
        run = Run(wish, wanted, manner, directory, keeper, supervision, environment)
        try:
            status = trio.run(run.main)
        except BaseExceptionGroup as group:
            raise _first(group) from None
        finally:
            keeper.dismiss()
        if not run.ranks:
            run.tell(
                f"ended by {run.stopped_by.name} before the ranks were started" if run.stopped_by else "ended"
            )
        else:
            seconds = time.monotonic() - run.began
            run.tell(f"{run.observed.sentence()}; {seconds:.1f} s, exit status {status}")
            nobody_came = run.observed.is_empty and not run.observed.has_joined
            if nobody_came and may_lack_inaproto(wish, sys.executable):
                run.tell(may_lack_inaproto(wish, sys.executable))
            if run.observed.recoveries:
                run.tell(f"rings that ended in the middle of a job: {run.observed.recoveries}")
            for reason in run.observed.reasons:
                run.tell(reason)
            if advice := run.processors.advice():
                run.tell(advice)
        _write_summary(manner.summary, run.outcome(status))
    return status


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that a person can act on, if there is one, else all of them."""
    known, _ = group.split(InaprotoError)
    first: BaseException = group if known is None else known
    while known is not None and isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _write_summary(where: str, outcome: dict[str, Any]) -> None:
    text = json.dumps(outcome, indent=2) + "\n"
    if where == STANDARD_OUTPUT:
        with suppress(OSError):
            sys.stdout.write(text)
            sys.stdout.flush()
    elif where:
        try:
            Path(where).write_text(text)
        except OSError as error:
            say(f"--json: cannot write {where}: {error.strerror}")
