"""Tensors on devices: by a stand-in whose copies come late, and on a GPU where there is one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from inaproto.errors import Unsupported
from tests.conftest import end_without
from tests.torch.conftest import TREE, Ranks, Zygote

TAKEN = {"INAPROTO_TORCH": "gloo"}


@pytest.fixture(scope="session")
def gpu(torch_python: Path) -> None:
    probe = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    done = subprocess.run([str(torch_python), "-c", probe], cwd=TREE, capture_output=True, check=False)
    if done.returncode:
        end_without("cuda", Unsupported("tensors of a GPU", "torch sees no GPU here"))


# --- a stand-in


@pytest.mark.parametrize(
    ("case", "size", "arguments"),
    [
        ("every_type_and_operation", 3, {"backend": "gloo"}),
        ("whatever_is_reduced", 3, {}),
        ("groups", 4, {}),
        ("works_that_nobody_holds", 2, {}),
        ("callbacks_that_wait", 2, {"depth": 5}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_late_copies_change_nothing(one_host: Ranks, case: str, size: int, arguments: dict[str, Any]) -> None:
    one_host.results("stand_in", size, TAKEN, inner=case, **arguments)


def test_training_by_late_copies_has_the_weights_of_one_process(one_host: Ranks, two_hosts: Ranks) -> None:
    for ranks, size in ((one_host, 4), (two_hosts, 2)):
        found = ranks.results("stand_in", size, TAKEN, inner="train", backend="gloo")
        assert {each["weights"] for each in found} == {found[0]["alone"]}


@pytest.mark.parametrize("nbytes", [64, 4096])
def test_vectors_in_more_pieces_than_there_are_slabs(one_host: Ranks, nbytes: int) -> None:
    for found in one_host.results("in_small_pieces", 3, TAKEN, device="cpu", nbytes=nbytes):
        assert found == ["inaproto"]


@pytest.mark.parametrize("how", ["work", "future", "ddp"])
def test_who_was_killed_is_named_by_a_staged_call(one_host: Ranks, how: str) -> None:
    ranks = one_host.run("stand_in", 3, TAKEN, inner="killed", how=how)
    for number in (0, 2):
        assert ranks[number].status == 0, ranks[number].output
        for words in ranks[number].result:
            assert "RankLost: " in words
            assert "rank 1" in words


def test_after_a_failure_any_number_of_staged_calls_hears_of_it(one_host: Ranks) -> None:
    ranks = one_host.run("fails_again_and_again", 3, TAKEN, times=30)
    for number in (0, 2):
        assert ranks[number].status == 0, ranks[number].output
        assert len(ranks[number].result) == 30
        assert all("RankLost: " in words for words in ranks[number].result)


def test_staged_calls_that_differ_are_errors_on_all_ranks(one_host: Ranks) -> None:
    for found in one_host.results("stand_in", 3, TAKEN, inner="different_calls"):
        assert all("TensorMismatch: " in words for words in found), found


@pytest.mark.parametrize("elements", [5, 0], ids=["later", "first"])
def test_who_does_not_come_to_a_staged_call_is_named(one_host: Ranks, elements: int) -> None:
    found = one_host.results("stand_in", 2, TAKEN, inner="late", elements=elements)
    assert "OperationTimeout: " in found[0]
    assert "rank 1" in found[0]
    assert "0.5 s" in found[0]


def test_a_forked_process_is_refused_by_a_staged_call(one_host: Ranks) -> None:
    for found in one_host.results("stand_in", 2, TAKEN, inner="forked"):
        *held, error = found
        assert set(held) == {"/dev/null"}
        assert "does not survive fork" in error


@pytest.mark.parametrize("without", ["", "error"])
def test_where_a_daemon_is_missing_a_devices_own_backend_goes_on_or_nobody(
    zygote: Zygote, one_host: Ranks, without: str
) -> None:
    nowhere = {"INAPROTO_HOST_SOCKET": "/nowhere/h0.sock"}
    places = [one_host.environment(0, 3), one_host.environment(1, 3), nowhere]
    wishes = {**TAKEN, "INAPROTO_TORCH_WITHOUT": without}
    environment = [{**place, **wishes} for place in places]
    ranks = zygote.run("stand_in", environment, inner="without_daemons", backend="gloo")
    for rank in ranks:
        assert rank.status == 0, rank.output
        words = rank.result["error"] if without else rank.result["why"]
        assert "cannot serve rank 2: /nowhere/h0.sock: No such file or directory" in words
        assert rank.result["carrier"] == ("" if without else "gloo")


# --- a GPU, which all ranks share


@pytest.mark.usefixtures("gpu")
class TestGpu:
    @pytest.mark.parametrize("elements", [1000, 3_000_001])
    def test_every_type_and_operation(self, one_host: Ranks, elements: int) -> None:
        for found in one_host.results("every_type", 3, TAKEN, backend="gloo", elements=elements):
            assert found == [["inaproto", {}]]

    @pytest.mark.parametrize("backend", ["nccl", "inaproto", "cuda:inaproto", "cpu:gloo,cuda:inaproto"])
    def test_no_all_reduce_asks_nccl(self, one_host: Ranks, backend: str) -> None:
        """NCCL refuses ranks that share a GPU, so it would be an error."""
        wishes = {"INAPROTO_TORCH": "nccl"}
        for found in one_host.results("every_type", 3, wishes, backend=backend, elements=1000):
            assert found == [["inaproto", {}]]

    def test_both_devices_in_one_group(self, one_host: Ranks) -> None:
        for backend in ("gloo", "cpu:inaproto,cuda:inaproto"):
            for found in one_host.results("both_devices", 3, TAKEN, backend=backend):
                assert found == ["inaproto", "inaproto"]

    def test_many_pieces(self, one_host: Ranks, two_hosts: Ranks) -> None:
        for ranks in (one_host, two_hosts):
            for found in ranks.results("in_small_pieces", 2, TAKEN, device="cuda", nbytes=1 << 16):
                assert found == ["inaproto"]

    def test_streams(self, one_host: Ranks) -> None:
        for found in one_host.results("streams", 2, TAKEN):
            assert found == ["inaproto"]

    @pytest.mark.parametrize("hook", ["", "allreduce"])
    def test_ddp_trains_to_the_weights_of_one_process(
        self, one_host: Ranks, two_hosts: Ranks, hook: str
    ) -> None:
        wishes = {} if hook else TAKEN
        for ranks, size in ((one_host, 3), (two_hosts, 2)):
            found = ranks.results("train_on_gpu", size, wishes, hook=hook)
            assert {each["weights"] for each in found} == {found[0]["alone"]}
            assert all(each["carriers"] == ["inaproto"] for each in found)

    @pytest.mark.parametrize("hook", ["bf16", "fixed_point"])
    def test_hooks_have_the_same_weights_on_every_path(
        self, one_host: Ranks, two_hosts: Ranks, hook: str
    ) -> None:
        found = one_host.results("train_on_gpu", 2, hook=hook) + two_hosts.results(
            "train_on_gpu", 2, hook=hook
        )
        assert len({each["weights"] for each in found}) == 1

    def test_who_was_killed_is_named(self, one_host: Ranks) -> None:
        ranks = one_host.run("killed_on_gpu", 3, TAKEN)
        assert ranks[1].status == -9
        for number in (0, 2):
            assert ranks[number].status == 0, ranks[number].output
            assert all("RankLost: " in words and "rank 1" in words for words in ranks[number].result)

    @pytest.mark.parametrize("without", ["", "error"])
    def test_where_a_daemon_is_missing_gloo_goes_on_or_nobody(
        self, zygote: Zygote, one_host: Ranks, without: str
    ) -> None:
        places = [one_host.environment(0, 2), {"INAPROTO_HOST_SOCKET": "/nowhere/h0.sock"}]
        wishes = {**TAKEN, "INAPROTO_TORCH_WITHOUT": without}
        environment = [{**place, **wishes} for place in places]
        for rank in zygote.run("gpu_without_daemons", environment, backend="gloo"):
            assert rank.status == 0, rank.output
            assert "cannot serve rank 1" in rank.result["error" if without else "why"]
            assert rank.result["carrier"] == ("" if without else "gloo")
            assert rank.result["count"] == (1 if without else 3)
