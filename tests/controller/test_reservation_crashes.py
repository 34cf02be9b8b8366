"""Controllers that are killed at any moment leave no reservation in UFM, and give none twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from inaproto.wire.messages.controller import AgentRole, HoldRecord
from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient
from tests.controller.crash_cluster import (
    HOSTS,
    POLL_S,
    SWITCHES,
    Controllers,
    CrashCluster,
    WatchfulAgent,
    until,
)
from tests.controller.test_controller_crashes import CRASHES, SEED
from tests.controller.ufm_double import USER, Fault, Loss, UfmDouble, running_ufm

pytestmark = pytest.mark.timeout(120 + 2 * CRASHES)
FORMS = pytest.mark.parametrize("form", ["pkeys", "apps"])


@pytest.fixture
def controllers(runtime_dir: Path) -> Iterator[Controllers]:
    started = Controllers(runtime_dir)
    yield started
    started.close()


class StayingAgent(WatchfulAgent):
    """An agent whose ranks run until they are ended."""

    def holds(self) -> list[HoldRecord]:
        """All of them run."""
        return [replace(one, phase="running") for one in super().holds()]


def ask(controllers: Controllers, folder: Path, ufm: UfmDouble, form: str) -> None:
    """Controllers that are started from here on ask this UFM."""
    ufm.by_pkeys = form == "pkeys"
    guids, secret = folder / "guids.json", folder / "secret"
    guids.write_text(json.dumps({name: [f"{number + 0xA0:x}"] for number, name in enumerate(HOSTS)}))
    secret.write_text(USER)
    secret.chmod(0o600)
    words = {"ufm": ufm.url, "ufm-by": form, "ufm-pkeys": "0x10-0x11", "ufm-answer-ms": "300"}
    files = {"ufm-guids": guids, "ufm-credentials": secret}
    given = {**words, **{name: str(path) for name, path in files.items()}}
    controllers.options = tuple(word for name, value in given.items() for word in (f"--{name}", value))


@FORMS
async def test_a_controller_killed_again_and_again_leaves_no_reservation(
    controllers: Controllers, runtime_dir: Path, form: str
) -> None:
    """Of UFM's answers some are lost, too, before it has done what was asked or after."""
    random = Random(f"{SEED}/ufm/{form}")

    def fault(method: str, path: str) -> Fault:
        if method == "GET" or random.random() < 0.7:
            return None
        trouble: list[Fault] = [*Loss, 500]
        return random.choice(trouble)

    ufm = UfmDouble(fault=fault)
    async with running_ufm(ufm):
        ask(controllers, runtime_dir, ufm, form)
        store = str(runtime_dir / "store")
        controllers.start("a", store)
        cluster = CrashCluster(controllers, ["a"], SEED)

        async def kill() -> None:
            await controllers.kill("a", cluster.promises if cluster.random.random() < 0.6 else None)
            controllers.start("a", store)
            changes = len([method for method, _, _ in ufm.asked if method != "GET"])
            with trio.move_on_after(cluster.random.uniform(0, 2)):
                await ufm.until(lambda: len([one for one in ufm.asked if one[0] != "GET"]) > changes + 1)

        await cluster.run(kill, times=max(8, CRASHES // 4))
        assert ufm.members() == {}
        assert ufm.faults == []
        made = [body for method, _, body in ufm.asked if method in ("POST", "PUT") and body["guids"]]
        assert len(made) >= 5, "the campaign has seen too little"


@FORMS
async def test_one_that_is_killed_before_ufm_answers_has_one_reservation_and_gives_it_back(
    controllers: Controllers, runtime_dir: Path, form: str
) -> None:
    """UFM has done what was asked, and nobody has heard so; then the same for its end."""
    ufm = UfmDouble()
    async with running_ufm(ufm), trio.open_nursery() as nursery:
        ask(controllers, runtime_dir, ufm, form)
        controllers.start("a", str(runtime_dir / "store"))
        client = JobClient([controllers.jobs_path("a")])
        roles: list[tuple[AgentRole, str]] = [("host", name) for name in HOSTS]
        for role, name in [*roles, *(("switch", name) for name in SWITCHES)]:
            agent = StayingAgent(role, name, [controllers.agents_path("a")], {}, SEED)
            nursery.start_soon(agent.link.run)

        async def insist(call: Callable[[], object]) -> None:
            """It may be answered by the next one only."""
            while True:
                try:
                    await trio.to_thread.run_sync(call)
                    return
                except ControllerUnreachable:
                    await trio.sleep(POLL_S)

        async def kill_before_its_answer(method: str) -> None:
            before = len(ufm.asked)
            ufm.fault = lambda its, path: Loss.SILENT_AFTER if its == method else None
            await ufm.until(lambda: any(one[0] == method for one in ufm.asked[before:]))
            await controllers.kill("a")
            ufm.fault = lambda its, path: None
            controllers.start("a", str(runtime_dir / "store"))

        def said() -> dict[str, object]:
            try:
                return client.ask("GET", "/v1/status")
            except (ControllerUnreachable, ControllerRefused):
                return {"leads": False}

        await until("it leads", lambda: said()["leads"])
        submit = partial(client.submit, "train", len(HOSTS), submission=f"{'train':a>40}")
        nursery.start_soon(insist, submit)
        await kill_before_its_answer("POST")
        assert list(ufm.members()) == ["0x0010"]
        await until("the job runs", lambda: said().get("grants") == len(HOSTS) + len(SWITCHES) + 1)
        assert list(ufm.members()) == ["0x0010"]
        nursery.start_soon(insist, partial(client.cancel, "train"))
        await kill_before_its_answer("POST" if form == "pkeys" else "DELETE")
        await until("all is given back", lambda: said().get("grants") == 0)
        assert ufm.members() == {}
        assert ufm.faults == []
        nursery.cancel_scope.cancel()
