"""What was a hang or a wrong result once: locks, works, futures, callbacks, forks, errors that vanish."""

from __future__ import annotations

import pytest

from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from tests.torch.conftest import Ranks, Zygote

TAKEN = {"INAPROTO_TORCH": "gloo"}


def test_gloo_is_never_called_with_the_interpreters_lock_held(one_host: Ranks) -> None:
    one_host.results("gloo_between", 3, TAKEN)


def test_works_that_python_does_not_hold_end(one_host: Ranks) -> None:
    one_host.results("works_that_nobody_holds", 2, TAKEN)


def test_callbacks_may_wait_for_further_all_reduces(one_host: Ranks) -> None:
    assert one_host.results("callbacks_that_wait", 2, TAKEN, depth=20) == [2.0, 2.0]


@pytest.mark.parametrize("how", ["work", "future", "ddp"])
def test_who_was_killed_is_named_wherever_the_error_comes_out(one_host: Ranks, how: str) -> None:
    ranks = one_host.run("killed", 3, TAKEN, how=how)
    assert ranks[1].status == -9
    for number in (0, 2):
        assert ranks[number].status == 0, ranks[number].output
        for words in ranks[number].result:
            assert "RankLost: " in words
            assert "rank 1" in words


@pytest.mark.parametrize("seed", range(50))
def test_a_rank_that_is_killed_at_any_moment_is_named_and_nobody_hangs(
    one_host: Ranks, two_hosts: Ranks, seed: int
) -> None:
    ranks = (two_hosts if seed % 2 else one_host).run("killed_at_random", 4, TAKEN, seed=seed)
    assert [rank.status for rank in ranks].count(-9) == 1
    for rank in ranks:
        if rank.status != -9:
            assert rank.status == 0, rank.output
            assert rank.result["named"], rank.result


@pytest.mark.parametrize("seed", range(50))
def test_a_daemon_that_is_killed_at_any_moment_costs_no_bit_or_is_named(zygote: Zygote, seed: int) -> None:
    """The switch, or one of three host daemons: training ends with the weights of one process, or all hear.

    One rank on each host, so that the sums are those of one process (docs/concepts.md).
    """
    with LocalCluster(ClusterConfig(hosts=3)) as cluster:
        daemon = cluster.daemons[seed % 4]
        asked = {"seed": seed, "pid": daemon.pid, "steps": 60}
        found = Ranks(zygote, cluster).results("daemon_killed", 3, TAKEN, **asked)
    for number, rank in enumerate(found):
        if rank["error"]:
            assert any(name in rank["error"] for name in ("rank ", "host ", "switch")), rank
        else:
            assert rank["weights"] == found[0]["alone"], number


def test_calls_that_differ_are_errors_on_all_ranks(one_host: Ranks) -> None:
    for found in one_host.results("different_calls", 3, TAKEN):
        assert all("TensorMismatch: " in words for words in found), found


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("average", "avg of float32 (3,)"),
        ("empty", "sum of float32 (0,)"),
        ("integers", "sum of int32 (3,)"),
    ],
)
@pytest.mark.parametrize("hosts", [1, 2])
def test_all_ranks_are_told_who_called_what(
    one_host: Ranks, two_hosts: Ranks, hosts: int, how: str, words: str, is_first: bool
) -> None:
    """An average beside sums gave numbers to all; where a tensor had no elements the others waited."""
    ranks = one_host if hosts == 1 else two_hosts
    for found in ranks.results("differ", 3, TAKEN, how=how, is_first=is_first):
        for told in found:
            assert "TensorMismatch: " in told, found
            assert words in told, found
            assert "sum of float32 (3,)" in told, found


@pytest.mark.parametrize("elements", [5, 0], ids=["later", "first"])
def test_who_does_not_come_is_named_after_the_timeout(one_host: Ranks, elements: int) -> None:
    found = one_host.results("late", 2, TAKEN, elements=elements)
    assert "OperationTimeout: " in found[0]
    assert "rank 1" in found[0]
    assert "0.5 s" in found[0]


@pytest.mark.parametrize("elements", [5, 0], ids=["later", "first"])
def test_who_does_not_come_to_gloo_in_our_stead_is_late_after_the_calls_timeout(
    zygote: Zygote, elements: int
) -> None:
    nowhere = {"INAPROTO_HOST_SOCKET": "/nowhere/h0.sock"}
    ranks = zygote.run("late", [TAKEN | nowhere] * 2, elements=elements)
    assert [rank.status for rank in ranks] == [0, 0], [rank.output for rank in ranks]
    words = "Timed out waiting" if elements else "rank 1 of 2 did not come to the group's first all-reduce"
    assert words in ranks[0].result


@pytest.mark.parametrize("carrier", ["inaproto", "gloo"])
def test_a_group_that_is_shut_down_ends_what_has_begun(zygote: Zygote, one_host: Ranks, carrier: str) -> None:
    """As gloo does: the others would wait for it until their timeouts."""
    nowhere = {"INAPROTO_HOST_SOCKET": "/nowhere/h0.sock"} if carrier == "gloo" else {}
    environment = [one_host.environment(rank, 3) | TAKEN | nowhere for rank in range(3)]
    for rank in zygote.run("shut_down_before_the_others_come", environment):
        assert rank.status == 0, rank.output
        assert rank.result == [6.0] * 3


def test_a_group_that_is_shut_down_alone_says_so_and_does_not_meet_anew(one_host: Ranks) -> None:
    found = one_host.results("shut_down_where_nobody_comes", 2, TAKEN)
    assert len(found[0]) == 2
    assert all("the process group was shut down" in words for words in found[0]), found


def test_who_has_joined_a_group_that_was_shut_down_meanwhile_leaves_it(one_host: Ranks) -> None:
    late, other = one_host.results("shut_down_while_joining", 2, TAKEN)
    assert "the process group was shut down" in late
    assert "RankLost: " in other
    assert "rank 0" in other


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first"])
def test_who_waits_for_a_group_that_is_aborted_hears_of_it(one_host: Ranks, is_first: bool) -> None:
    here, there = one_host.results("aborted", 2, TAKEN, is_first=is_first)
    waited, afterwards = here
    assert ("was shut down" if is_first else "was closed") in waited
    assert "the process group was shut down" in afterwards
    if not is_first:
        (words,) = there
        assert "RankLost: rank 0" in words


def test_a_forked_process_holds_none_of_the_ranks_sockets(one_host: Ranks) -> None:
    for found in one_host.results("forked", 2, TAKEN):
        *held, error = found
        assert set(held) == {"/dev/null"}
        assert "does not survive fork" in error


@pytest.mark.parametrize(("status", "heard"), [(None, " left job "), (0, " left job "), (1, " is lost: ")])
def test_a_process_of_multiprocessing_leaves_if_it_ends_well(
    two_hosts: Ranks, status: int | None, heard: str
) -> None:
    found = two_hosts.results("ended_by_multiprocessing", 2, TAKEN, status=status)
    assert heard in found[0]


def test_fake_tensors_are_no_business_of_ours(one_host: Ranks) -> None:
    one_host.results("fake", 2, TAKEN)


@pytest.mark.parametrize(
    ("backend", "without", "goes_on"),
    [("gloo", "", True), ("gloo", "error", False), ("inaproto", "", False), ("inaproto", "gloo", True)],
)
def test_where_a_daemon_is_missing_all_go_on_or_none_does(
    zygote: Zygote, one_host: Ranks, backend: str, without: str, goes_on: bool
) -> None:
    nowhere = {"INAPROTO_HOST_SOCKET": "/nowhere/h0.sock"}
    places = [one_host.environment(0, 3), one_host.environment(1, 3), nowhere]
    wishes = {"INAPROTO_TORCH": "gloo", "INAPROTO_TORCH_WITHOUT": without}
    ranks = zygote.run("without_daemons", [{**place, **wishes} for place in places], backend=backend)
    for number, rank in enumerate(ranks):
        assert rank.status == 0, rank.output
        words = rank.result["why"] if goes_on else rank.result["error"]
        assert "cannot serve rank 2: /nowhere/h0.sock: No such file or directory" in words
        assert rank.result["carrier"] == ("gloo" if goes_on else "")
        assert ("gloo carries its all-reduces" in rank.output) == (goes_on and number == 0)
