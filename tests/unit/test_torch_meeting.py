"""How ranks of a process group agree on a job (:mod:`inaproto.torch.meeting`), without torch."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable

import pytest

from inaproto.errors import ConfigError, OperationTimeout
from inaproto.torch import autoload
from inaproto.torch.meeting import Agreed, Patience, meet
from inaproto.torch.wishes import TorchWishes, torch_wishes

DEADLINE_S = 120.0


class DictStore:
    """A store that is never cleared."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        self._kept[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        return self._kept[key]

    def check(self, keys: list[str], /) -> bool:
        return all(key in self._kept for key in keys)


def patience(seconds: float) -> Patience:
    return Patience(time.monotonic() + seconds, seconds, time.monotonic, time.sleep)


def met(store: DictStore, size: int, why_not: Callable[[int], str] = lambda _: "") -> list[Agreed]:
    found: dict[int, Agreed] = {}

    def rank(number: int) -> None:
        found[number] = meet(
            store, number, size, group="g", why_not=why_not(number), run="r/1", patience=patience(DEADLINE_S)
        )

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(size)]


def test_ranks_agree_each_time_anew_on_a_store_that_keeps_all_keys() -> None:
    store = DictStore()
    seen = set()
    for _ in range(20):
        first, *others = met(store, 4)
        assert all((each.job, each.key, each.lacks) == (first.job, first.key, {}) for each in others)
        assert first.job.startswith("torch-r-1-")
        assert len(first.key) == 64
        assert first.key not in repr(first)
        seen.add((first.job, first.key))
    assert len(seen) == 20


def test_all_hear_which_ranks_cannot_be_served_and_why() -> None:
    for agreed in met(DictStore(), 3, lambda rank: "no daemon" if rank else ""):
        assert agreed.lacks == {1: "no daemon", 2: "no daemon"}


def test_who_waits_in_vain_says_for_whom() -> None:
    store = DictStore()
    with pytest.raises(OperationTimeout, match=r"^g: ranks 1, 2 of 3 did not come .* within 0.05 s$"):
        meet(store, 0, 3, group="g", why_not="", run="", patience=patience(0.05))
    with pytest.raises(OperationTimeout, match=r"^g: rank 0 did not come .* within 0.05 s$"):
        meet(store, 2, 3, group="g", why_not="", run="", patience=patience(0.05))


def test_an_answer_to_a_former_nonce_is_not_taken_for_a_confirmation() -> None:
    """A rank of the incarnation before has asked, and is gone: rank 0 waits for the one that asks now."""
    store = DictStore()
    store.set("inaproto/ask/1", "old")
    first, second = met(store, 2)
    assert first.job == second.job


def test_wishes_are_read_from_the_environment() -> None:
    wishes = torch_wishes({"INAPROTO_TORCH": " Gloo,nccl ", "INAPROTO_TORCH_WITHOUT": ""})
    assert wishes.taken == {"gloo", "nccl"}
    assert wishes.serves("inaproto")
    assert wishes.serves("gloo")
    assert not TorchWishes().serves("gloo")


def test_a_group_that_names_inaproto_does_not_go_on_without_unless_that_is_wished() -> None:
    assert not TorchWishes().goes_on_without("inaproto")
    assert TorchWishes().goes_on_without("gloo")
    assert TorchWishes(without="gloo").goes_on_without("inaproto")
    assert not TorchWishes(without="error").goes_on_without("gloo")


@pytest.mark.parametrize(
    ("variable", "value"), [("INAPROTO_TORCH", "gloo,mpi"), ("INAPROTO_TORCH_WITHOUT", "maybe")]
)
def test_a_wish_that_means_nothing_is_named(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        torch_wishes({variable: value})


def test_a_misspelt_wish_is_named_when_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else gloo goes on, and nobody knows why."""
    monkeypatch.setenv("INAPROTO_TORHC", "gloo")
    monkeypatch.setenv("INAPROTO_TORCH", "gloo")
    with pytest.warns(UserWarning, match="INAPROTO_TORHC is not known, did you mean INAPROTO_TORCH?"):
        autoload._warn_of_slips()
    monkeypatch.delenv("INAPROTO_TORHC")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autoload._warn_of_slips()
