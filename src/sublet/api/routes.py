"""The routes of the HTTP API. Every answer is JSON with `schema_version`; every error is {error, field, next}."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field
from starlette.exceptions import HTTPException

from sublet.api.body import Body
from sublet.api.callers import Caller, Callers, while_it_holds
from sublet.api.console.routes import add_console
from sublet.api.described import describe_answers
from sublet.api.guard import CALLER, HOLDS, SCHEMA_VERSION, Guard
from sublet.api.idempotency import Idempotency
from sublet.api.limits import MOST_ASKED
from sublet.api.logs import lines_with, log_stream
from sublet.api.metrics import exposition
from sublet.api.quick import Quick
from sublet.api.state import digest
from sublet.api.what_if.routes import add_what_if
from sublet.errors import (
    BadInput,
    Infeasible,
    InvalidValue,
    NoSuchJob,
    NotNow,
    OutOfBudget,
    PolicyFailed,
    RentFailed,
    StaleController,
    StoreFailed,
    SubletError,
    UnknownName,
)
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.controller_api.remaining import forecast_of
from sublet.runtime.controller_api.tokens import OWNER, READER, Scope
from sublet.runtime.controller_api.views import ENDED, RESTING, JobLog
from sublet.runtime.jobs.bounds import MOST_USD, MOST_WORKERS
from sublet.runtime.jobs.spec import spec_from_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp

STATUS: tuple[tuple[type[SubletError], int], ...] = (
    (NoSuchJob, 404),
    (NotNow, 409),
    (OutOfBudget, 409),
    (InvalidValue, 422),
    (StoreFailed, 503),  # before BadInput, of which it is a kind
    (BadInput, 422),
    (UnknownName, 422),
    (Infeasible, 422),
    (RentFailed, 503),
    (PolicyFailed, 503),
    (StaleController, 503),
)
FAULT = 500
MOST_LINES = 1_000_000  # of a log, from its end
MOST_SEQ = 2**53  # the largest number that every reader of JSON keeps exactly


class JobBody(Body):
    """A job, as `spec_to_json` writes it."""

    job: dict[str, Any]


class CancelBody(Body):
    """How to end a job."""

    now: bool = False


class ResumeBody(Body):
    """Whether it may begin at step 0 if all its checkpoints are damaged; secrets that it is given anew."""

    start_over: bool = False
    secrets: dict[str, str] = Field(default_factory=dict, repr=False)


class ScaleBody(Body):
    """The new range of workers."""

    low: int = Field(ge=1, le=MOST_WORKERS)
    high: int = Field(ge=1, le=MOST_WORKERS)


class BudgetBody(Body):
    """New limits; what is left out stays."""

    burn_limit_usd_per_h: float | None = Field(default=None, gt=0, le=MOST_USD)
    average_usd_per_h: float | None = Field(default=None, gt=0, le=MOST_USD)
    purse_usd: float | None = Field(default=None, gt=0, le=MOST_USD)


class PurseBody(Body):
    """A budget and its limit: in all, or in each period. No amount = no limit."""

    level: str = Field(max_length=10)
    name: str = Field(default="", max_length=200)
    amount_usd: float | None = Field(default=None, ge=0, le=MOST_USD)
    period: str | None = Field(default=None, max_length=10)


class TopUpBody(Body):
    """Dollars for the budget."""

    usd: float = Field(gt=0, le=MOST_USD)


class ShutdownBody(Body):
    """Whether jobs end, or can be resumed at the next start."""

    end_jobs: bool = False


def application(
    api: Api, *, port: int, token_digest: bytes, read_digest: bytes | None = None, live: bool = True
) -> ASGIApp:
    """The whole server, guard first; if it is not `live`, it is read-only."""
    callers = _callers(port, token_digest, read_digest, Scope.ADMIN if live else Scope.READ)
    callers.tokens |= api.tokens.digests()
    app = routes_to(api)
    add_tokens(app, api, callers)
    add_what_if(app, api)
    add_console(app, api, callers, port=port, live=live)
    describe_answers(app)
    return Guard(Quick(Idempotency(app), api), port=port, callers=callers)


def guarded(app: ASGIApp, *, port: int, token_digest: bytes) -> ASGIApp:
    """Allowed requests pass, and twice under one key is once."""
    return Guard(Idempotency(app), port=port, callers=_callers(port, token_digest, None))


def _callers(port: int, token_digest: bytes, read_digest: bytes | None, owner: Scope = Scope.ADMIN) -> Callers:
    tokens = {token_digest: (OWNER, owner)}
    return Callers(port=port, tokens=tokens | ({read_digest: (READER, Scope.READ)} if read_digest else {}))


async def _by(request: Request) -> str:
    """The name of the caller. It waits for nothing, but what is not async would be asked in another thread."""
    caller = request.scope.get(CALLER)
    return caller.who if isinstance(caller, Caller) else ""


By = Annotated[str, Depends(_by)]


def routes_to(api: Api) -> FastAPI:
    """All routes and their answers. FastAPI takes its time to build it."""
    app = FastAPI(title="Sublet", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    _add_errors(app)
    _add_jobs(app, api)
    _add_money(app, api)
    _add_controller(app, api)
    add_parts(app, api)
    return app


def _answer(**facts: Any) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, **facts}


# ---------------------------------------------------------------------- jobs


def _add_jobs(app: FastAPI, api: Api) -> None:
    @app.get("/v1/jobs")
    async def jobs() -> dict[str, Any]:
        return _answer(jobs=list(await api.jobs()))

    @app.post("/v1/jobs", status_code=201)
    async def submit(body: JobBody, by: By, idempotency_key: Annotated[str, Header()] = "") -> dict[str, Any]:
        return _answer(**await api.submit(spec_from_json(body.job), key=idempotency_key, by=by))

    @app.post("/v1/dry-run")
    async def dry_run(body: JobBody) -> dict[str, Any]:
        return _answer(**await api.dry_run(spec_from_json(body.job)))

    @app.get("/v1/jobs/{ref}")
    async def job(ref: str) -> dict[str, Any]:
        return _answer(**await api.job(api.directory.find(ref)))

    @app.post("/v1/jobs/{ref}/cancel")
    async def cancel(ref: str, body: CancelBody, by: By) -> dict[str, Any]:
        return _answer(**await api.cancel(api.directory.find(ref), now=body.now, by=by))

    @app.post("/v1/jobs/{ref}/pause")
    async def pause(ref: str, by: By) -> dict[str, Any]:
        return _answer(**await api.pause(api.directory.find(ref), by=by))

    @app.post("/v1/jobs/{ref}/resume")
    async def resume(ref: str, by: By, body: ResumeBody | None = None) -> dict[str, Any]:
        wanted = body or ResumeBody()
        job_id = api.directory.find(ref)
        return _answer(**await api.resume(job_id, start_over=wanted.start_over, secrets=wanted.secrets, by=by))

    @app.post("/v1/jobs/{ref}/top-up")
    async def top_up(ref: str, body: TopUpBody, by: By) -> dict[str, Any]:
        return _answer(**await api.top_up_job(api.directory.find(ref), body.usd, by=by))

    @app.post("/v1/jobs/{ref}/scale")
    async def scale(ref: str, body: ScaleBody, by: By) -> dict[str, Any]:
        if body.high < body.low:
            raise InvalidValue("workers", f"{body.low}..{body.high}", "low..high")
        return _answer(**await api.scale(api.directory.find(ref), low=body.low, high=body.high, by=by))

    @app.get("/v1/jobs/{ref}/explain")
    async def explain(ref: str) -> dict[str, Any]:
        return _answer(**await api.explain(api.directory.find(ref)))

    @app.get("/v1/jobs/{ref}/losses")
    async def losses(ref: str) -> dict[str, Any]:
        return _answer(losses=api.curves.of(api.directory.find(ref)))

    @app.get("/v1/jobs/{ref}/log")
    async def log(  # noqa: PLR0913 - one for each way to look at it
        request: Request,
        ref: str,
        rank: Annotated[int | None, Query(ge=0, le=MOST_WORKERS)] = None,
        worker: str = "",
        tail: Annotated[int | None, Query(ge=0, le=MOST_LINES)] = None,
        words: Annotated[str, Query(max_length=200)] = "",
        *,
        every: bool = False,
        follow: bool = False,
        lines: bool = False,
    ) -> StreamingResponse:
        job_id, holds = api.directory.find(ref), request.scope.get(HOLDS, lambda: True)
        wanted = None if every or worker else rank or 0
        await api.log_parts(job_id, rank=wanted, worker_id=worker)  # refuses before the first byte is sent

        async def find_parts() -> JobLog:
            return await api.log_parts(job_id, rank=wanted, worker_id=worker)

        async def ended() -> bool:
            return not holds() or (await api.job(job_id))["phase"] in ENDED | RESTING

        stream = log_stream(find_parts, ended=ended, follow=follow, tail=tail, as_json=lines, rank=wanted)
        kind = "application/x-ndjson" if lines else "text/plain; charset=utf-8"
        told = while_it_holds(stream, holds)
        return StreamingResponse(lines_with(words, told) if words else told, media_type=kind)

    @app.get("/v1/events")
    async def events(
        job: str = "",
        after: Annotated[int, Query(ge=0, le=MOST_SEQ)] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        *,
        newest: bool = False,
    ) -> dict[str, Any]:
        job_id = api.directory.find(job) if job else None
        return _answer(events=list(await api.events(job_id, after=after, limit=limit, newest=newest)))

    @app.get("/v1/cost")
    async def cost(job: str = "") -> dict[str, Any]:
        return _answer(**await api.cost(api.directory.find(job) if job else None))


# ---------------------------------------------------------------------- money


def _add_money(app: FastAPI, api: Api) -> None:
    @app.get("/v1/budget")
    async def budget() -> dict[str, Any]:
        return _answer(**await api.budget())

    @app.get("/v1/forecast")
    async def forecast() -> dict[str, Any]:
        return _answer(**forecast_of(await api.jobs()))

    @app.post("/v1/budget")
    async def set_budget(body: BudgetBody, by: By) -> dict[str, Any]:
        return _answer(**await api.set_budget(**body.model_dump(), by=by))

    @app.get("/v1/budgets")
    async def budgets(by: By) -> dict[str, Any]:
        return _answer(purses=api.budgets.rows(by))

    @app.post("/v1/budgets")
    async def set_purse(body: PurseBody, by: By) -> dict[str, Any]:
        return _answer(purses=await api.budgets.set(**body.model_dump(), by=by))

    @app.post("/v1/budget/top-up")
    async def top_up(body: TopUpBody, by: By) -> dict[str, Any]:
        return _answer(**await api.top_up(body.usd, by=by))


# ---------------------------------------------------------------------- the controller itself


def _add_controller(app: FastAPI, api: Api) -> None:
    tasks: set[asyncio.Task[None]] = set()

    @app.get("/v1/nodes")
    async def nodes() -> dict[str, Any]:
        return _answer(nodes=list(await api.nodes()))

    @app.get("/v1/prices")
    async def prices() -> dict[str, Any]:
        return _answer(prices=list(api.prices.list()))

    @app.get("/v1/health")
    async def health() -> dict[str, Any]:
        return _answer(**await api.health())

    @app.post("/v1/shutdown", status_code=202)
    async def shutdown(body: ShutdownBody, by: By) -> dict[str, Any]:
        task = asyncio.create_task(api.shutdown(end_jobs=body.end_jobs, by=by))
        tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(tasks.discard)
        return _answer(stopping=True)

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        return _answer(ok=True)

    @app.get("/readyz")
    async def readyz() -> Response:
        found = await api.health()
        ready = found["ready"] and not found["stopping"]
        return JSONResponse(_answer(ok=ready, why=found["why"]), status_code=200 if ready else 503)

    @app.get("/metrics")
    async def metrics(by: By) -> Response:
        text, kind = await exposition(api, by)
        return Response(text, media_type=kind)


# ---------------------------------------------------------------------- errors


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(SubletError)
    async def answer_error(request: Request, error: SubletError) -> JSONResponse:
        status = next((status for kind, status in STATUS if isinstance(error, kind)), FAULT)
        text, _next, advice = str(error).partition("\n  next: ")
        field = error.field if isinstance(error, InvalidValue) else ""
        advice = advice or advice_for(request.url.path)
        return _error_answer(status, text, field=field, advice=advice, exit_code=error.exit_code)

    @app.exception_handler(RequestValidationError)
    async def answer_malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        text, advice = f"{field or 'the body'}: {first['msg']}", advice_for(request.url.path)
        return _error_answer(422, text, field=field, advice=advice, exit_code=2)

    @app.exception_handler(HTTPException)
    async def answer_unknown_path(_: Request, error: HTTPException) -> JSONResponse:
        return _error_answer(error.status_code, str(error.detail), advice=OTHERWISE)

    @app.exception_handler(Exception)
    async def answer_fault(_: Request, error: Exception) -> JSONResponse:
        return _error_answer(
            FAULT, f"internal error: {type(error).__name__}", advice="see controller.log in the state directory"
        )


def _error_answer(status: int, text: str, *, field: str = "", advice: str = "", exit_code: int = 1) -> JSONResponse:
    facts = _answer(error=_sendable(text), field=_sendable(field), next=_sendable(advice), exit_code=exit_code)
    return JSONResponse(facts, status_code=status)


def _sendable(text: str) -> str:
    """A text that may hold half a letter (a lone surrogate), fit to be repeated in errors."""
    return text.encode("utf-8", "backslashreplace").decode()


SUBMIT = "change it in the job file ('sublet schema' has what may be there), and try it: sublet submit FILE --dry-run"
BY_PATH = (  # the end of the path that was asked -> what helps there
    ("/v1/jobs", SUBMIT),
    ("/v1/dry-run", SUBMIT),
    ("/resume", "sublet resume --help"),
    ("/scale", "sublet scale --help"),
    ("/v1/budget/top-up", "sublet budget top-up --help"),
    ("/top-up", "sublet budget top-up --help; sublet cost JOB"),
    ("/v1/budget", "sublet budget set --help; sublet budget show"),
    ("/v1/parts", "submit the job again: it sends its files once more"),
)
OTHERWISE = "/v1/openapi.json lists what can be asked, and how"


def advice_for(path: str) -> str:
    """By what was asked of the controller."""
    return next((advice for end, advice in BY_PATH if path.endswith(end)), OTHERWISE)


class TokenBody(Body):
    """Owner and scope of a token."""

    name: str = Field(max_length=100)
    scope: str = Scope.READ
    user: str = Field(default="", max_length=100)
    team: str = Field(default="", max_length=100)


def add_tokens(app: FastAPI, api: Api, callers: Callers) -> None:
    """For admins alone: the guard sees to that."""

    @app.get("/v1/tokens")
    async def tokens() -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "tokens": list(api.tokens.list())}

    @app.post("/v1/tokens", status_code=201)
    async def create(body: TokenBody, request: Request) -> dict[str, Any]:
        if body.scope not in list(Scope):
            raise InvalidValue("scope", body.scope, f"one of {', '.join(Scope)}")
        scope = Scope(body.scope)
        who = request.scope[CALLER].who
        token = api.tokens.create(body.name, scope, user=body.user, team=body.team, by=who)
        callers.tokens[digest(token)] = (body.name, scope)
        return {"schema_version": SCHEMA_VERSION, "name": body.name, "scope": scope, "token": token}

    @app.post("/v1/tokens/{name}/revoke")
    async def revoke(name: str, request: Request) -> dict[str, Any]:
        api.tokens.revoke(name, by=request.scope[CALLER].who)
        for key in [key for key, (who, _) in callers.tokens.items() if who == name]:
            del callers.tokens[key]
        return {"schema_version": SCHEMA_VERSION, "name": name, "revoked": True}


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class AskedBody(Body):
    """Names of parts that a job is made of."""

    digests: list[Digest] = Field(max_length=MOST_ASKED)


class WholeBody(Body):
    """The name of all files of a job."""

    digest: Digest


class PartsBody(Body):
    """Parts by name, packed and in base64."""

    parts: dict[Digest, str]


def add_parts(app: FastAPI, api: Api) -> None:
    """Which of them are not here, and here they come."""

    @app.post("/v1/parts/whole")
    async def whole(body: WholeBody) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "whole": await api.parts.whole(body.digest)}

    @app.post("/v1/parts/lacking")
    async def lacking(body: AskedBody) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "lacking": await api.parts.lacking(body.digests)}

    @app.post("/v1/parts")
    async def take(body: PartsBody) -> dict[str, Any]:
        parts = {digest: _bytes_of(digest, text) for digest, text in body.parts.items()}
        await api.parts.take(parts)
        return {"schema_version": SCHEMA_VERSION, "taken": len(parts)}


def _bytes_of(digest: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue(f"parts.{digest}", text[:20], "base64") from None
