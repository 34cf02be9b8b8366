"""Everything of torch that is built on all-reduces, above inaproto: groups, DDP's forms, FSDP2, functions."""

from __future__ import annotations

import math

import pytest

from tests.torch.conftest import Ranks, Zygote

TAKEN = {"INAPROTO_TORCH": "gloo"}


def test_what_is_not_ours_goes_to_gloo_for_a_reason(one_host: Ranks) -> None:
    for found in one_host.results("whatever_is_reduced", 3, TAKEN):
        assert found == {"PRODUCT is none of sum, max, min and avg": 1, "elements of type uint8": 1}


@pytest.mark.parametrize("carrier", ["inaproto", "gloo"])
def test_views_that_are_negated_lazily_have_the_sums_of_their_numbers(
    zygote: Zygote, one_host: Ranks, carrier: str
) -> None:
    """gloo itself sums what is in their memory."""
    nowhere = {"INAPROTO_HOST_SOCKET": "/nowhere/h0.sock"} if carrier == "gloo" else {}
    environment = [one_host.environment(rank, 3) | TAKEN | nowhere for rank in range(3)]
    for rank in zygote.run("negated", environment):
        assert rank.status == 0, rank.output
        assert rank.result == [carrier]


def test_what_was_reduced_may_be_resized(one_host: Ranks) -> None:
    one_host.results("resized", 2, TAKEN)


@pytest.mark.parametrize("backend", ["gloo", "inaproto"])
def test_sums_of_multiples_go_to_the_groups_backend_with_their_factor(one_host: Ranks, backend: str) -> None:
    """gloo refuses them by its own words; a kernel that was not told the factor says so."""
    for found in one_host.results("sums_of_multiples", 2, TAKEN, backend=backend):
        for form in ("plain", "coalesced", "in one"):
            assert "Cannot use ReduceOp.PREMUL_SUM with Gloo" in found[form], found
        assert "PREMUL_SUM" in found["kernel"]
        assert "INTERNAL ASSERT" not in found["kernel"]
        (elsewhere,) = found["elsewhere"]
        assert elsewhere["PREMUL_SUM is none of sum, max, min and avg"] >= 3


def test_groups_in_groups_and_meshes_are_jobs_of_their_own(one_host: Ranks) -> None:
    for found in one_host.results("groups", 4, TAKEN):
        assert found.count("inaproto") == 4


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.001},
    ],
    ids=lambda options: next(iter(options)),
)
def test_ddp_in_each_form_trains_to_the_weights_of_one_process(
    one_host: Ranks, options: dict[str, object]
) -> None:
    found = one_host.results("train", 3, TAKEN, backend="gloo", **options)
    assert {each["weights"] for each in found} == {found[0]["alone"]}


@pytest.mark.parametrize("form", ["no_sync", "join", "autocast", "fp16", "powersgd", "zero", "compile"])
def test_all_ranks_have_the_same_weights(one_host: Ranks, form: str) -> None:
    found = one_host.results("hooks_and_forms", 3, TAKEN, form=form)
    assert len({each["weights"] for each in found}) == 1
    assert all("inaproto" in each["carriers"] for each in found)


@pytest.mark.parametrize("replicas", [1, 2])
def test_fsdp2_trains_as_above_gloo(one_host: Ranks, replicas: int) -> None:
    ours = one_host.results("fully_sharded", 4, TAKEN, replicas=replicas)
    gloo = one_host.results("fully_sharded", 4, replicas=replicas)
    assert ours[0]["losses"] == pytest.approx(gloo[0]["losses"], rel=1e-5)
    assert all("inaproto" in each["carriers"] for each in ours)
    assert gloo[0]["carriers"] == []


def test_functional_collectives_and_distributed_tensors(one_host: Ranks) -> None:
    for found in one_host.results("functional", 3, TAKEN):
        assert "inaproto" in found


def test_a_hook_sums_as_one_process_does_and_leaves_all_else_to_the_backend(one_host: Ranks) -> None:
    found = one_host.results("hooks_of_ours", 4, hook="allreduce")
    assert {each["weights"] for each in found} == {found[0]["alone"]}
    assert all(len(each["groups"]) == 1 and each["groups"][0] >= 4 for each in found)


def test_the_hook_of_bfloat16_has_the_same_weights_on_all_ranks(one_host: Ranks) -> None:
    assert len({each["weights"] for each in one_host.results("hooks_of_ours", 3, hook="bf16")}) == 1


def test_fixed_point_sums_have_the_same_bytes_on_every_path(one_host: Ranks, two_hosts: Ranks) -> None:
    weights = set()
    for ranks, path in ((one_host, "auto"), (two_hosts, "auto"), (two_hosts, "ring"), (two_hosts, "chain")):
        found = ranks.results("hooks_of_ours", 4, {"INAPROTO_PATH": path}, hook="fixed_point")
        weights |= {each["weights"] for each in found}
    assert len(weights) == 1


def test_a_bucket_with_an_infinity_becomes_nan_on_all_ranks(one_host: Ranks) -> None:
    for *odd, usual in one_host.results("fixed_points_of_odd_numbers", 2):
        assert all(math.isnan(number) for numbers in odd for number in numbers)
        assert usual == [1.0, 2.0, 1.0]


def test_an_all_reduce_that_is_waited_for_at_once_needs_no_other_thread(one_host: Ranks) -> None:
    for waited, asked in one_host.results("threads_of_ours", 2, TAKEN):
        assert waited == ["MainThread"]
        assert set(asked) == {"MainThread", "inaproto", "inaproto-completions"}


def test_a_profiler_sees_all_reduces_from_their_calls_to_their_ends(one_host: Ranks) -> None:
    for found in one_host.results("profiled", 2, TAKEN):
        assert [name for name, _ in found] == ["inaproto:all_reduce"] * 2
        assert found[1][1], "nobody but another thread ends what is waited for by its future"


def test_an_all_reduce_has_ended_for_a_profiler_when_it_was_waited_for(one_host: Ranks) -> None:
    assert one_host.results("profiled_again_and_again", 3, TAKEN, times=30) == [[1] * 30] * 3
