"""What the bench says when its guest fails, and when it does; the guest itself: tests/hil."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from inaproto_hil.softroce import guest, progress
from inaproto_hil.softroce.guest import GuestFailed, boot, guest_failure_alone
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.progress import hangs

COMPUTES = "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done"


def test_a_guest_that_fails_says_so_whatever_nurseries_are_around_it() -> None:
    with pytest.raises(GuestFailed, match="no boot"), guest_failure_alone():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [GuestFailed("no boot")])])
    with pytest.raises(GuestFailed, match="bare"), guest_failure_alone():
        raise GuestFailed("bare")


def test_what_else_failed_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup) as group, guest_failure_alone():
        raise ExceptionGroup("outer", [GuestFailed("no boot"), ValueError("ours")])
    assert group.group_contains(ValueError)


@pytest.fixture
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_S", 0.01)


@pytest.mark.parametrize(
    ("does", "rests_max", "cpu_s_max", "slept"),
    [("exec sleep 1000", 2, 1000.0, range(3, 4)), ("while :; do :; done", 50, 0.5, range(50))],
    ids=["it sleeps", "it has no end"],
)
@pytest.mark.usefixtures("looked_at_often")
async def test_what_hangs_sleeps_or_computes_without_end(
    does: str, rests_max: int, cpu_s_max: float, slept: range
) -> None:
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(trio.run_process, ["sh", "-c", does])
        why = await hangs(process.pid, rests_max=rests_max, cpu_s_max=cpu_s_max)
        nursery.cancel_scope.cancel()
    assert why.startswith("it used ")
    assert int(why.split(" slept ")[1].split()[0]) in slept


@pytest.mark.usefixtures("looked_at_often")
async def test_a_guest_that_computes_for_long_is_waited_for_and_one_that_sleeps_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process in the place of the virtual machine, which may stand still as long as its machine is busy."""
    before, image = COMPUTES, Image("", Path(), Path())

    def machine(image: Image, hosts: object, ports: object, out: Path, **_: object) -> list[str]:
        return ["sh", "-c", f"echo here it comes; {before}; . {out}/job.sh"]

    monkeypatch.setattr(guest, "_command", machine)
    monkeypatch.setattr(guest, "set_up", lambda *_, **__: "")
    monkeypatch.setattr(guest, "CONTROL_GATEWAY", "127.0.0.1")
    async with boot(image, []) as booted:
        assert (await booted.run(["echo", "up"])).out == "up\n"
    before = "exec sleep 1000"
    monkeypatch.setattr(guest, "BOOT_RESTS_MAX", 9)
    with (
        pytest.raises(GuestFailed, match=r"(?s)does not come up: .* slept 10 times .*here it comes"),
        guest_failure_alone(),
    ):
        async with boot(image, []):
            pass
