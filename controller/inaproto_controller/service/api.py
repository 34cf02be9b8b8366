"""The job API: HTTP and JSON, for ``inaproto job`` and programs.

    POST /v1/jobs             {"name", "hosts", "ranks_per_host"?, "model"?, "on"?, "elastic"?,
                              "submission"?}:
                              201 {"job", "token"}; "on": names of the hosts, where they are chosen already;
                              "elastic": ranks go on without those that are lost
    GET  /v1/jobs?live=true   {"jobs": [...]}
    GET  /v1/jobs/NAME        {"job"}; with ?after=REVISION&wait_s=20 once it is newer, or after that time
    POST /v1/jobs/NAME/cancel {}: {"job"}
    GET  /v1/sharing          {"groups": [...]}: pools of switch memory, whose turn it is, who is there
    GET  /v1/trees            where the rings of these jobs are, who has slots, moves and their times
    POST /v1/trees/NAME/move  {"root": "spine1", "wait_s"?}: {"job", "root", "stands", "move"}: the job's ring
                              is to be summed there, or its tree in SHARP is to have that root; "": wherever
                              the plan has it
    GET  /v1/status           of one that does not lead "as_of_s" says how old it is
    GET  /                    a page for people; ?refresh_s=5&window_s=60

Every call can be made again: a job submitted with the same fields and ``submission`` is the same job (200,
not 201) with the same token, and a job that is cancelled stays so. Who may lose answers gives one,
a random text of its own; of it, and of the token, only hashes are stored. Refusals are
``{"error": {"code", "message"}}``; 503 ``not_leader``: ask another controller, or again.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import wraps
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

import trio
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from inaproto.daemon.net.names import require_name
from inaproto.errors import InaprotoError, InvariantBroken, LocalMisuse
from inaproto_controller.cluster.desired import Job, JobSpec
from inaproto_controller.cluster.model import measured_names
from inaproto_controller.service.controller import (
    Controller,
    JobRefused,
    NameTaken,
    NoSuchJob,
    NotLeading,
    QueueFull,
)
from inaproto_controller.service.page.page import HEADERS, Asked, LivePage
from inaproto_controller.service.tokens import new_submission
from inaproto_controller.service.tree_requests import move_job

BODY_BYTES_MAX: Final = 1 << 16
BODY_S: Final = 30.0
"""Who has not sent a request's body within this time is not waited for."""
WAIT_S_MAX: Final = 60.0
HOSTS_MAX: Final = 1 << 16
RANKS_MAX: Final = 1 << 10
NAME_MAX: Final = 128
_STATUS: Final[dict[type[InaprotoError], tuple[int, str]]] = {
    NotLeading: (503, "not_leader"),
    NoSuchJob: (404, "no_such_job"),
    NameTaken: (409, "name_taken"),
    JobRefused: (422, "job_refused"),
    QueueFull: (429, "queue_full"),
}


def _model(value: str | None) -> str | None:
    if value is not None and value not in measured_names():
        raise ValueError(f"must be one of {', '.join(measured_names())}, or left out")
    return value


class _Submission(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, AfterValidator(require_name)]
    hosts: int = Field(ge=1, le=HOSTS_MAX)
    ranks_per_host: int = Field(default=1, ge=1, le=RANKS_MAX)
    model: Annotated[str | None, AfterValidator(_model)] = None
    on: list[Annotated[str, AfterValidator(require_name)]] = Field(default=[], max_length=HOSTS_MAX)
    elastic: bool = False
    submission: str | None = Field(default=None, min_length=32, max_length=128)

    @model_validator(mode="after")
    def _names_each_host_once(self) -> Self:
        if self.on and not len(self.on) == len(set(self.on)) == self.hosts:
            raise ValueError(
                f"on: names {len(set(self.on))} hosts in {len(self.on)} places, hosts says {self.hosts}"
            )
        return self


class _After(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    after: int = Field(default=-1, ge=-1)
    wait_s: float = Field(default=0.0, ge=0.0, le=WAIT_S_MAX)


class _Move(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    root: str = Field(max_length=NAME_MAX)
    wait_s: float = Field(default=0.0, ge=0.0, le=WAIT_S_MAX)


class _Which(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    live: bool = False


Handler = Callable[[Request], Awaitable[Response]]


def application(controller: Controller) -> Starlette:
    def said(job: Job) -> dict[str, Any]:
        return document(job) | {
            "places": controller.places.document(job.number),
            "no_tree": controller.without_trees.get(job.number, ""),
            "planned": controller.prediction(job),
        }

    async def submit(request: Request) -> Response:
        asked = _Submission.model_validate(await _body(request))
        spec = JobSpec(
            name=asked.name,
            hosts=asked.hosts,
            ranks_per_host=asked.ranks_per_host,
            model=asked.model,
            on=tuple(asked.on),
            elastic=asked.elastic,
        )
        found = await controller.submit(spec, asked.submission or new_submission())
        answer = {"job": said(found.job), "token": found.token}
        return JSONResponse(answer, status_code=201 if found.is_new else 200)

    async def every(request: Request) -> Response:
        which = _Which.model_validate(dict(request.query_params))
        return JSONResponse({"jobs": [said(job) for job in controller.jobs(live=which.live)]})

    async def one(request: Request) -> Response:
        after = _After.model_validate(dict(request.query_params))
        job = await controller.job_after(request.path_params["name"], after.after, after.wait_s)
        return JSONResponse({"job": said(job)})

    async def cancel(request: Request) -> Response:
        await _body(request)
        return JSONResponse({"job": said(await controller.cancel(request.path_params["name"]))})

    async def status(request: Request) -> Response:
        return JSONResponse(controller.status())

    page = LivePage(controller.topology)

    async def look(request: Request) -> Response:
        asked = Asked.model_validate(dict(request.query_params))
        return HTMLResponse(page.render(controller, asked), headers=HEADERS)

    async def script(request: Request) -> Response:
        return Response(page.script, media_type="text/javascript", headers=HEADERS)

    async def sharing(request: Request) -> Response:
        return JSONResponse({"groups": controller.sharing()})

    async def trees(request: Request) -> Response:
        return JSONResponse(controller.trees().status())

    async def move(request: Request) -> Response:
        asked = _Move.model_validate(await _body(request))
        found = await move_job(controller, request.path_params["name"], asked.root, asked.wait_s)
        return JSONResponse(asdict(found))

    return Starlette(
        routes=[
            Route("/v1/jobs", _answered(submit), methods=["POST"]),
            Route("/v1/jobs", _answered(every), methods=["GET"]),
            Route("/v1/jobs/{name}", _answered(one), methods=["GET"]),
            Route("/v1/jobs/{name}/cancel", _answered(cancel), methods=["POST"]),
            Route("/v1/sharing", _answered(sharing), methods=["GET"]),
            Route("/v1/trees", _answered(trees), methods=["GET"]),
            Route("/v1/trees/{name}/move", _answered(move), methods=["POST"]),
            Route("/v1/status", _answered(status), methods=["GET"]),
            Route("/", _answered(look), methods=["GET"]),
            Route("/live.js", _answered(script), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error},
    )


def document(job: Job) -> dict[str, Any]:
    """As people and programs see a job; fields may be added."""
    tree = job.tree
    return {
        "number": job.number,
        "name": job.spec.name,
        "state": job.state.value,
        "why": job.why,
        "hosts_wanted": job.spec.hosts,
        "ranks_per_host": job.spec.ranks_per_host,
        "model": job.spec.model,
        "hosts_named": list(job.spec.on),
        "elastic": job.spec.elastic,
        "hosts": list(job.hosts),
        "tree": None if tree is None else {"root": tree.root, "switches": tree.switches, "links": tree.links},
        "group": job.group,
        "root_wished": job.root,
        "submitted_at": job.submitted_at,
        "token_expires_at": job.expires_s,
        "revision": job.revision,
    }


async def _body(request: Request) -> Any:
    # A page in somebody's browser cannot send this type to a port of loopback without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body must be JSON: content-type: application/json")
    data = bytearray()
    try:
        with trio.fail_after(BODY_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > BODY_BYTES_MAX:
                    raise HTTPException(413, f"the body is longer than {BODY_BYTES_MAX} bytes")
    except trio.TooSlowError:
        raise HTTPException(408, f"the body has not come within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection ended in the middle of the body") from None
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


def _answered(handler: Handler) -> Handler:
    @wraps(handler)
    async def answer(request: Request) -> Response:
        if not _is_asked_here(request):
            return _error(403, "bad_host", "ask by an address of this machine, or as localhost")
        try:
            return await handler(request)
        except ValidationError as error:
            lines = [
                f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg'].removeprefix('Value error, ')}"
                for one in error.errors(include_url=False, include_context=False)
            ]
            return _error(422, "bad_request", "; ".join(lines))
        except (InvariantBroken, LocalMisuse):
            raise
        except InaprotoError as error:
            status, code = _STATUS[type(error)]
            return _error(status, code, str(error))

    return answer


def _is_asked_here(request: Request) -> bool:
    """Not through a name of somebody else that leads to loopback: to a browser, his page would be ours."""
    if request.scope.get("server") is None:  # a UNIX socket, which no browser opens
        return True
    try:
        name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, "bad_request", f"{request.method} {request.url.path}: {error.detail}")


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)
