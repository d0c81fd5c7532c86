"""The page and its files, the link that lets a browser in, and what the page alone asks for."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from pydantic import Field

from sublet.api.body import Body
from sublet.api.callers import COOKIE_S, LINK_S, Caller, Callers, cookie_name, while_it_holds
from sublet.api.feed import Feed
from sublet.api.guard import CALLER, HOLDS, SCHEMA_VERSION
from sublet.errors import BadInput
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.jobs.file import job_from_text
from sublet.runtime.jobs.spec import spec_to_json

FOLDER = Path(__file__).parent
KINDS = (".js", ".mjs", ".css", ".html", ".svg")
POLICY = (  # no text becomes a script or a piece of the page
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
    " trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
AGAIN = b"retry: 1000\n\n"  # milliseconds, until a page whose line broke tries again
LONGEST_FILE = 100_000  # letters of a job file


class JobFileBody(Body):
    """The text of a job file."""

    text: str = Field(max_length=LONGEST_FILE)


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """By path below /console/: what is sent, and its kind. No other file can be asked for."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in KINDS:
            kind = "text/javascript" if path.suffix in (".js", ".mjs") else mimetypes.guess_type(path.name)[0]
            found[path.relative_to(FOLDER).as_posix()] = (path.read_bytes(), f"{kind}; charset=utf-8")
    return found


def add_console(app: FastAPI, api: Api, callers: Callers, *, port: int, live: bool = True) -> None:
    """All of it."""
    feed = Feed(api)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        text, kind = files()["page.html"]
        return Response(text, media_type=kind, headers=HEADERS)

    @app.get("/console/{path:path}", include_in_schema=False)
    async def file(path: str) -> Response:
        if path not in files():
            return JSONResponse(_answer(error="there is no such file", field="", next="", exit_code=1), status_code=404)
        text, kind = files()[path]
        return Response(text, media_type=kind, headers=HEADERS)

    @app.get("/enter", include_in_schema=False)
    async def enter(request: Request, code: str = "") -> Response:
        site = request.headers.get("sec-fetch-site", "none")
        sent = site not in ("none", "same-origin")
        cookie = None if sent else callers.enter(code)
        if cookie is None:
            used = "This link was used before, or is older than a minute.\nnext: sublet dashboard\n"
            text = "Another site led here.\nnext: paste the link into the address bar\n" if sent else used
            return Response(text, status_code=403, media_type="text/plain; charset=utf-8", headers=HEADERS)
        answer = RedirectResponse("/", status_code=303, headers=HEADERS)
        answer.set_cookie(cookie_name(port), cookie, max_age=COOKIE_S, path="/", httponly=True, samesite="strict")
        return answer

    @app.post("/v1/sessions")
    async def invite(request: Request) -> dict[str, Any]:
        """A link that opens the page once, in the browser of its caller."""
        return _answer(path=f"/enter?code={callers.invite(_caller(request))}", seconds=LINK_S)

    @app.post("/v1/sessions/end")
    async def leave(request: Request) -> Response:
        callers.leave(dict(request.headers))
        answer = JSONResponse(_answer(ended=True))
        answer.delete_cookie(cookie_name(port), path="/", httponly=True, samesite="strict")
        return answer

    @app.get("/v1/me")
    async def me(request: Request) -> dict[str, Any]:
        """The caller and its scope; whether the controller it sees runs."""
        caller = _caller(request)
        return _answer(who=caller.who, scope=str(caller.scope), live=live)

    @app.get("/v1/live")
    async def listen(request: Request) -> StreamingResponse:
        """Server-sent events: `all` once, then `change`, twice a second: of known jobs and nodes what is otherwise."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        told = while_it_holds(feed.listen(), request.scope[HOLDS])
        return StreamingResponse(_coming_again(told), media_type="text/event-stream", headers=headers)

    @app.post("/v1/job-files/check")
    async def check(body: JobFileBody) -> dict[str, Any]:
        """The job that a text describes, as /v1/dry-run and /v1/jobs take it; or what is wrong with it, by line.

        Nothing of the controller's own environment or directory gets into it.
        """
        read = partial(job_from_text, source="job file", base=Path("/"), environment={})
        spec = await asyncio.to_thread(read, body.text)  # a long one takes a second, in a thread of its own
        if spec.secrets:
            raise BadInput("job file", "it has secrets, which do not belong on a page", hint="sublet submit FILE")
        return _answer(name=spec.name, job=spec_to_json(spec, secrets=True), notes=list(spec.notes))


async def _coming_again(told: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """And when to, once it is over."""
    yield AGAIN
    async with aclosing(told):
        async for message in told:
            yield message


def _caller(request: Request) -> Caller:
    return cast(Caller, request.scope[CALLER])  # the guard has put it there


def _answer(**facts: Any) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, **facts}
