"""The pure parts of ``inaproto run``: who a process is, what follows an end or a signal, lines, outcomes."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from click.testing import CliRunner, Result

from inaproto.client.environment import discover
from inaproto.core.rendezvous.recovery import ASKED
from inaproto.errors import ConfigError
from inaproto.launch.advice import SILENT_S, Processors, about_ranks, processor_seconds
from inaproto.launch.command import run as run_command
from inaproto.launch.daemons import Wanted
from inaproto.launch.gone_ranks import GoneRanks, gone_ranks
from inaproto.launch.labelled_lines import LINE_BYTES_MAX, LabelledLines
from inaproto.launch.outcome import Observed
from inaproto.launch.plan import (
    CommandNotFound,
    Wish,
    environments,
    find_command,
    may_lack_inaproto,
    own_index,
    parse_backends,
    parse_hosts,
    redirected,
    shared_port,
)
from inaproto.launch.processes import Ends, Keeper, Process
from inaproto.launch.run import Manner, Run
from inaproto.launch.supervision import Supervision
from tests.unit.test_supervision import drive

INT, TERM, KILL, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1


# --- where it does not help


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (1, 1), (3, 3), (8, 2), (4, 2)])
def test_only_two_ranks_on_two_hosts_are_told_that_there_is_nothing_to_save(ranks: int, hosts: int) -> None:
    assert "a ring of two sends each byte once" in about_ranks(2, 2)
    assert about_ranks(ranks, hosts) == ""


def processors(*looks: tuple[float, float, float] | None) -> Processors:
    """Looks at the times, and with the seconds in use and idle, that are given; None: not known."""
    known = iter([None if look is None else look[1:] for look in looks])
    made = Processors(lambda: next(known))
    for look in looks:
        made.look(0.0 if look is None else look[0])
    return made


def test_processors_that_limit_a_job_are_named_after_it() -> None:
    busy = processors((100.0, 50.0, 70.0), (105.0, 0.0, 0.0), (110.0, 67.0, 73.0))
    assert busy.share == pytest.approx(0.85)
    assert busy.advice().startswith("85% of this machine's processors were in use: they limit this job")
    assert processors((0.0, 0.0, 0.0), (10.0, 16.9, 3.1)).advice() == ""


@pytest.mark.parametrize(
    "looks",
    [
        (),
        (None, None),
        ((0.0, 1.0, 1.0),),
        ((0.0, 1.0, 1.0), (9.9, 20.0, 1.0)),
        ((0.0, 1.0, 1.0), (20.0, 1.0, 1.0)),
    ],
)
def test_without_a_measure_nothing_is_said_of_processors(looks: tuple[Any, ...]) -> None:
    found = processors(*looks)
    assert (found.share, found.advice()) == (None, "")


def test_seconds_of_processors_are_the_kernels(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 50 700 20 5 5 10 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert processor_seconds(stat) == (170 / ticks, 720 / ticks), "without the ten that others had"
    for text in ("", "cpu x\n", "cpu 1 2 3\n", "intr 1 2 3 4 5 6 7 8 9\n"):
        stat.write_text(text)
        assert processor_seconds(stat) is None
    assert processor_seconds(tmp_path / "none") is None


# --- what processes are told


def wish(**fields: Any) -> Wish:
    usual: dict[str, Any] = {"ranks": 4, "job": "train", "key": "secret", "master_port": 29_501}
    return Wish(("/bin/true",), **(usual | fields))


def told(wished: Wish, sockets: list[str], **inherited: str) -> list[dict[str, str]]:
    return environments(wished, sockets, "mark", inherited=inherited, cores=8, is_labelled=False)


def test_a_process_is_told_who_it_is_for_torch_and_for_connect() -> None:
    first, *_, last = told(wish(), ["/run/h0.sock"], HOME="/home/a")
    assert first == {
        "HOME": "/home/a",
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29501",
        "INAPROTO_JOB": "train",
        "INAPROTO_RANK": "0",
        "INAPROTO_SIZE": "4",
        "INAPROTO_KEY": "secret",
        "INAPROTO_HOST_SOCKET": "/run/h0.sock",
        "INAPROTO_TORCH": "gloo",
        "INAPROTO_RUN": "mark",
        "OMP_NUM_THREADS": "2",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    found = discover(last)
    assert (found.job, found.rank, found.size, found.key) == ("train", 3, 4, "secret")


def test_what_the_user_has_set_is_left_where_it_is_not_ours_to_say() -> None:
    inherited = {
        "OMP_NUM_THREADS": "3",
        "INAPROTO_PATH": "chain",
        "INAPROTO_TORCH": "gloo",
        "INAPROTO_KEY": "k",
    }
    one, *_ = told(wish(backends=(), key=""), ["s"], **inherited)
    assert (one["OMP_NUM_THREADS"], one["INAPROTO_PATH"]) == ("3", "chain")
    assert "INAPROTO_TORCH" not in one
    assert "INAPROTO_KEY" not in one
    assert told(wish(path="ring"), ["s"], **inherited)[0]["INAPROTO_PATH"] == "ring"
    labelled = environments(wish(), ["s"], "mark", inherited={}, cores=8, is_labelled=True)
    assert labelled[0]["PYTHONUNBUFFERED"] == "1"


def test_ranks_are_divided_among_host_daemons_in_order() -> None:
    """The order of additions is by host and rank: neighbours in rank stand at one host."""
    assert [one["INAPROTO_HOST_SOCKET"] for one in told(wish(), ["a", "b"])] == ["a", "a", "b", "b"]
    assert [one["INAPROTO_HOST_SOCKET"] for one in told(wish(ranks=5), ["a", "b"])] == [
        "a",
        "a",
        "a",
        "b",
        "b",
    ]
    assert [one["INAPROTO_HOST_SOCKET"] for one in told(wish(ranks=2), ["a", "b"])] == ["a", "b"]


def test_a_machine_of_several_has_its_part_of_the_ranks() -> None:
    part = told(wish(hosts=("a", "b", "c"), host_index=1), ["s"])
    assert [one["RANK"] for one in part] == ["4", "5", "6", "7"]
    assert [one["LOCAL_RANK"] for one in part] == ["0", "1", "2", "3"]
    assert {one["WORLD_SIZE"] for one in part} == {"12"}
    assert {one["MASTER_ADDR"] for one in part} == {"a"}
    assert {one["GROUP_RANK"] for one in part} == {"1"}
    assert shared_port("train") == shared_port("train") != shared_port("train2")
    assert 20_000 <= shared_port("train") < 32_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b", ("a", "b")),
        ("a b\nc", ("a", "b", "c")),
        ("node[01-03,7]", ("node01", "node02", "node03", "node7")),
        ("n[1-2]-ib,x", ("n1-ib", "n2-ib", "x")),
        ("10.0.0.1,10.0.0.2", ("10.0.0.1", "10.0.0.2")),
    ],
)
def test_machines_are_named_as_people_and_slurm_do(
    text: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert parse_hosts(text, tmp_path) == expected


def test_machines_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "machines").write_text("# ours\na slots=4\n\nb   # the second\n")
    assert parse_hosts("machines", tmp_path) == ("a", "b")
    (tmp_path / "empty").write_text("# none\n")
    with pytest.raises(ConfigError, match="--hosts: names no machine"):
        parse_hosts("empty", tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no machine"),
        ("a,a", "a is named twice; -n says how many ranks"),
        ("/no/such/file", "is no name of a machine \\(and no file of that name is here\\)"),
        ("n[1-x]", "is no name of a machine"),
        ("n[3-]", "\\[3-\\] is no list of numbers"),
        ("n[1-999999999]", "is no list of numbers"),
    ],
)
def test_wrong_machines_are_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_hosts(text, tmp_path)


def test_which_machine_this_is() -> None:
    hosts = ("a.example", "b.example")
    assert own_index(hosts, 1, {}, "a") == 1
    assert own_index(hosts, None, {}, "b") == 1
    assert own_index(hosts, None, {}, "b.example") == 1
    assert own_index(("x", "y"), None, {"SLURM_NODEID": "1", "SLURM_NNODES": "2"}, "node7") == 1
    with pytest.raises(
        ConfigError, match=r"this machine is called c, which is none of a\.example, b\.example"
    ):
        own_index(hosts, None, {}, "c")
    with pytest.raises(ConfigError, match="--host-index: 2 is none of 0 to 1"):
        own_index(hosts, 2, {}, "a")


def test_backends_of_torch() -> None:
    assert parse_backends("gloo,nccl") == ("gloo", "nccl")
    assert parse_backends("none") == ()
    assert parse_backends(" nccl ") == ("nccl",)
    for text in ("mpi", "gloo,none", "", ","):
        with pytest.raises(ConfigError, match=r"--backend: .* is not allowed: name gloo, nccl"):
            parse_backends(text)
    assert redirected(wish()) == "all-reduces of torch's gloo go by inaproto; --backend none leaves them"
    assert "gloo and nccl go by inaproto" in redirected(wish(backends=("gloo", "nccl")))
    assert not redirected(wish(backends=()))


def test_programs_and_scripts_that_are_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "tool").write_text("")

    def refused(*words: str) -> tuple[str, int]:
        with pytest.raises(CommandNotFound) as caught:
            find_command(words, {"PATH": "/usr/bin:/bin"}, tmp_path, "/venv/bin/python")
        return str(caught.value), caught.value.status

    assert refused("pythn", "train.py") == ("pythn: there is no such program, neither on PATH nor here", 127)
    assert refused("./pythn") == ("./pythn: there is no such program", 127)
    assert refused("./tool") == ("./tool is not executable", 126)
    words, status = refused("train.py")
    assert (words.split(";")[0], status) == ("train.py is not executable", 126)
    assert "python train.py" in words
    assert refused("python", "trian.py")[0].startswith("trian.py: there is no such script in ")


def test_python_is_that_of_inaproto_unless_another_is_active(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    words, path = ("python", "train.py", "--lr", "1"), {"PATH": str(tmp_path)}
    found = find_command(words, path, tmp_path, "/venv/bin/python")
    assert found == ("/venv/bin/python", "train.py", "--lr", "1")
    found = find_command(words, path | {"VIRTUAL_ENV": "/other"}, tmp_path, "/venv/bin/python")
    assert found[0] == str(tmp_path / "python")


def test_a_python_that_may_lack_inaproto_is_asked_about() -> None:
    other = Wish(("/env/bin/python3.11", "t.py"), 2, "train", "")
    assert "is it, for /env/bin/python3.11?" in may_lack_inaproto(other, "/own/bin/python")
    assert not may_lack_inaproto(other, "/env/bin/python3.11")
    assert not may_lack_inaproto(wish(), "/own/bin/python")
    unasked = Wish(("/env/bin/python", "t.py"), 2, "train", "", backends=())
    assert not may_lack_inaproto(unasked, "/own/bin/python")


# --- the command's options


def command(*arguments: str, **environment: str | None) -> Result:
    clean = dict.fromkeys(("INAPROTO_JOB", "INAPROTO_KEY", "INAPROTO_PATH", "INAPROTO_TORCH"))
    return CliRunner().invoke(run_command, arguments, env={**clean, **environment})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no command; for example: inaproto run -n 2 -- python train.py"),
        (("-n", "0", "--", "true"), "-n: 0 is not allowed; a job has one rank at least"),
        (("-n", "65", "--", "true"), "-n: 65 ranks are too many; a switch takes 64"),
        (("-n", "2", "--daemons", "0", "--", "true"), "--daemons: 0 is not allowed"),
        (("--master-port", "70000", "--", "true"), "--master-port: 70000 is no port"),
        (("--host-index", "0", "--", "true"), "--host-index: is for a job of several machines"),
        (("--hosts", "a,b", "--host-index", "0", "--", "true"), "--hosts: give --job NAME (or INAPROTO_JOB)"),
        (("--backend", "mpi", "--", "true"), "--backend: 'mpi' is not allowed"),
        (("--job", "a b", "--", "true"), "--job: 'a b' is no name: 1 to 128 letters"),
        (
            ("-n", "1", "--daemons", "2", "--dir", "/nonexistent", "--", "true"),
            "--daemons: 2 host daemons for 1 rank",
        ),
    ],
)
def test_wrong_options_are_named_before_anything_is_started(arguments: tuple[str, ...], words: str) -> None:
    result = command(*arguments)
    assert result.exit_code == 2, result.output
    assert f"inaproto run: {words}" in result.output


def test_options_of_the_script_are_the_scripts() -> None:
    result = command("-n", "1", "nosuchprogram", "-n", "7", "--help")
    assert (result.exit_code, result.output) == (
        127,
        "inaproto run: nosuchprogram: there is no such program, neither on PATH nor here\n",
    )


def test_ranks_of_other_machines_need_daemons_that_run(tmp_path: Path) -> None:
    here = socket.gethostname()
    result = command("--hosts", f"{here},other", "--job", "j", "--dir", str(tmp_path), "--", "true")
    assert result.exit_code == 2
    assert "--hosts: no host daemon runs here" in result.output


# --- what becomes of ranks


def ranks_of(*processes: tuple[int, str, bool], age_s: float = 1.0) -> dict[str, Any]:
    """A host's status: sessions, what they were told, whether they have gone."""
    return {
        "rank_processes": [
            {"session": session, "joined_s_ago": age_s, "told": told, "gone": gone}
            for session, told, gone in processes
        ]
    }


def test_who_has_gone_is_known_by_the_session_of_its_process() -> None:
    ours = {70: 0, 71: 1, 72: 2}
    found = gone_ranks([ranks_of((70, "", True), (71, "", False), (99, "", True))], ours, 5.0)
    assert found == GoneRanks({0}, {}, {1})
    old = ranks_of((70, "", True), age_s=9.0)
    assert gone_ranks([old], ours, 5.0) == GoneRanks(), "of a process that had the number before"
    assert gone_ranks([{"name": "h0"}], ours, 5.0) == GoneRanks(), "an older release"


def test_a_rank_with_several_daemons_or_jobs_has_gone_when_it_has_from_all() -> None:
    hosts = [
        ranks_of((70, "", True), (71, "", True)),
        ranks_of((70, "", False), (71, "rank 0 is lost", True)),
    ]
    assert gone_ranks(hosts, {70: 0, 71: 1}, 5.0) == GoneRanks(set(), {1: "rank 0 is lost"}, {0})


def test_where_all_ranks_are_here_no_other_launcher_is_waited_for(tmp_path: Path) -> None:
    """A rank may be lost here and have ended well: it left when the others wanted more."""

    def waited_s(*hosts: str) -> float:
        job = Supervision(range(2), 10)
        job.heard({1}, {0: "RankLost: rank 1 left"})
        drive(job, (0, "exited", 1, 0), (0, "exited", 0, 5))
        wish = Wish(("true",), 2, "j", "k", hosts=hosts)
        manner = Manner(ends_with_input=True, grace_s=10)
        run = Run(wish, Wanted(), manner, tmp_path, cast("Keeper", None), job, {})

        async def let() -> float:
            began = trio.current_time()
            await run._let_the_first_go_first()
            return trio.current_time() - began

        return trio.run(let, clock=trio.testing.MockClock(autojump_threshold=0))

    assert (waited_s("h0"), waited_s("h0", "h1")) == (0, 20)


@pytest.mark.parametrize("joins_after_s", [90, 110, 150, None])
def test_ranks_that_join_nothing_for_long_are_wondered_about_once(
    joins_after_s: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may wait for ranks that nobody starts, and say nothing."""
    run = Run(wish(), Wanted(), Manner(), tmp_path, cast("Keeper", None), Supervision(range(2), 10), {})

    def jobs(number: int) -> None:
        run.observed.take([{"name": "h0", "totals": {"jobs": number}}], [])

    async def observe() -> None:
        jobs(3)
        with trio.move_on_after(1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run._observe_often)
                if joins_after_s is not None:
                    await trio.sleep(joins_after_s)
                    jobs(4)

    trio.run(observe, clock=trio.testing.MockClock(autojump_threshold=0))
    said = capsys.readouterr().err
    is_late = joins_after_s is None or joins_after_s > SILENT_S
    assert said.count("no rank has joined a job in 120 s") == (1 if is_late else 0)
    assert ("the 4 ranks that were started" in said) == is_late


def test_ends_are_told_in_their_order_also_at_one_look() -> None:
    pipes = {number: os.pipe() for number in range(6)}
    processes = {
        number: Process(str(number), ["/bin/sh", "-c", f"read _; exit {number}"], {}, stdin=reads)
        for number, (reads, _) in pipes.items()
    }
    with closing(Ends(processes)) as ends:
        for number in (4, 0, 5, 2, 1, 3):
            os.close(pipes[number][1])
            os.waitid(os.P_PID, processes[number].pid, os.WEXITED | os.WNOWAIT)
        assert ends.now() == [(number, number) for number in (4, 0, 5, 2, 1, 3)]
        assert (ends.now(), bool(ends)) == ([], False)
    for number, process in processes.items():
        process.close()
        os.close(pipes[number][0])


# --- lines


def test_lines_get_a_label_when_they_are_whole() -> None:
    lines = LabelledLines("[3] ")
    assert lines.feed(b"ab") == b""
    assert lines.feed(b"c\nde\n\nf") == b"[3] abc\n[3] de\n[3] \n"
    assert lines.end() == b"[3] f\n"
    assert lines.end() == b""


@pytest.mark.parametrize("cut", range(9))
def test_progress_bars_and_windows_lines(cut: int) -> None:
    text = b"1%\r2%\r\nx\n"
    lines = LabelledLines(">")
    assert lines.feed(text[:cut]) + lines.feed(text[cut:]) + lines.end() == b">1%\r>2%\r\n>x\n"


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    lines = LabelledLines("")
    assert len(lines.feed(b"x" * (LINE_BYTES_MAX + 5))) == LINE_BYTES_MAX + 1
    assert lines.end() == b"xxxxx\n"


# --- the outcome


def host(
    name: str, paths: dict[str, int], *, halted: tuple[str, ...] = (), recoveries: int = 0
) -> dict[str, Any]:
    return {
        "name": name,
        "pid": 1,
        "totals": {
            "operations_by_path": paths,
            "bytes_by_path": {path: count << 20 for path, count in paths.items()},
            "recoveries": recoveries,
        },
        "rings": [{"job": "train", "halted_because": halted}],
    }


def test_the_outcome_is_what_came_since_the_first_answer() -> None:
    seen = Observed()
    seen.take([host("h0", {"switch": 100}), host("h1", {})], [])
    assert seen.sentence().startswith(
        "no all-reduce went by a host daemon (ranks of one host that add in place"
    )
    seen.take([host("h0", {"switch": 103}), host("h1", {"switch": 3, "chain": 1})], [])
    assert seen.as_dict() == {
        "operations_by_path": {"switch": 3, "chain": 1},
        "bytes_by_path": {"switch": 3 << 20, "chain": 1 << 20},
        "recoveries": 0,
        "reasons": [],
    }
    assert seen.sentence() == "4 all-reduces: 3 in the switch (3 MiB), 1 along the chain of hosts (1 MiB)"


def test_ranks_that_add_among_themselves_are_not_said_to_lack_anything() -> None:
    def joined(jobs: int) -> dict[str, Any]:
        found = host("h0", {})
        found["totals"]["jobs"] = jobs
        return found

    seen = Observed()
    seen.take([joined(3)], [])
    assert "which ranks have joined" not in seen.sentence(), "these were of others"
    seen.take([joined(4)], [])
    assert seen.sentence() == (
        "no all-reduce went by a host daemon, which ranks have joined: "
        "those of one host that add in place do so among themselves"
    )


def test_reasons_of_fallbacks_are_each_told_once() -> None:
    seen = Observed()
    full = {"jobs": [{"name": "train", "fallback": "leaf0: needs 2723400 bytes of memory, 0 are free"}]}
    seen.take([host("h0", {})], [{"jobs": [{"name": "train", "fallback": ""}]}])
    seen.take([host("h0", {}, halted=("link down",), recoveries=1)], [full])
    seen.take([host("h0", {}, halted=("link down",), recoveries=1)], [full])
    assert seen.reasons == [
        "job 'train': link down",
        "job 'train': leaf0: needs 2723400 bytes of memory, 0 are free",
    ]
    assert seen.recoveries == 1


def test_a_path_that_was_asked_for_is_no_fallback() -> None:
    seen = Observed()
    seen.take([], [{"jobs": [{"name": "train", "fallback": ASKED}]}])
    assert seen.reasons == []
