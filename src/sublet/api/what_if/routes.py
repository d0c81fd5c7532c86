"""Forecasts: futures of the state as it is, and the plan under other terms. Nothing is changed by asking."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from pydantic import Field

from sublet.api.body import Body
from sublet.api.callers import Caller
from sublet.api.guard import CALLER, SCHEMA_VERSION
from sublet.api.what_if.question import GRACE_S, Question, packed
from sublet.errors import BadInput, Infeasible, UnknownName
from sublet.market.traces import TRACES
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.jobs.bounds import MOST_USD

LIMIT_S = 30.0  # wall, for all futures of a question
MOST_FUTURES, MOST_H = 100, 14 * 24.0
MOST_WAIT = 3  # questions, beside the one that is answered


class WhatIfBody(Body):
    """How far to look, how often, over which record, and with how much more money."""

    hours: float = Field(default=24.0, gt=0, le=MOST_H)
    futures: int = Field(default=20, ge=1, le=MOST_FUTURES)
    market: str = ""  # by a name of 'sublet traces'; "" = what the provider replays, else the longest record
    more_usd_per_h: float = Field(default=0.0, ge=0, le=MOST_USD)  # on the burn limit and on the average
    more_usd: float = Field(default=0.0, ge=0, le=MOST_USD)  # on the budget
    seed: int = Field(default=0, ge=0, le=2**31)


class TermsBody(Body):
    """Terms to try; what is left out stays."""

    job: str = ""  # whose alternatives are wanted
    hour_usd: float | None = Field(default=None, gt=0, le=MOST_USD)
    burn_limit_usd_per_h: float | None = Field(default=None, gt=0, le=MOST_USD)
    average_usd_per_h: float | None = Field(default=None, gt=0, le=MOST_USD)
    purse_usd: float | None = Field(default=None, gt=0, le=MOST_USD)


class HourBody(Body):
    """Value of an hour of a job."""

    usd_per_h: float = Field(gt=0, le=MOST_USD)


async def _by(request: Request) -> str:
    caller = request.scope.get(CALLER)
    return caller.who if isinstance(caller, Caller) else ""


def add_what_if(app: FastAPI, api: Api) -> None:
    """All of it."""
    one_at_a_time, waiting = asyncio.Lock(), [0]

    @app.post("/v1/what-if")
    async def what_if(body: WhatIfBody) -> dict[str, Any]:
        """Futures of all that runs, over recorded days of a market, as it is and with more money."""
        if body.market and body.market not in TRACES:
            raise UnknownName("market", body.market, TRACES)
        if waiting[0] > MOST_WAIT:
            raise BadInput("what-if", "others ask already, one at a time", hint="try again in a minute")
        waiting[0] += 1
        try:
            async with one_at_a_time:
                question = Question(**body.model_dump(), limit_s=LIMIT_S)
                return {"schema_version": SCHEMA_VERSION, **await _aside(packed(api.trials.standing(), question))}
        finally:
            waiting[0] -= 1

    @app.post("/v1/plans/dry-run")
    async def dry_plan(body: TermsBody) -> dict[str, Any]:
        """The plan that would be made now with another value of time or another budget."""
        terms = body.model_dump(exclude={"job"})
        job_id = api.directory.find(body.job) if body.job else None
        return {"schema_version": SCHEMA_VERSION, **await api.trials.plan(job_id=job_id, **terms)}

    @app.post("/v1/value-of-time")
    async def value_of_time(body: HourBody, by: Annotated[str, Depends(_by)]) -> dict[str, Any]:
        """Set the value of an hour of a job from the next plan on, where no budget says it."""
        api.trials.set_hour(body.usd_per_h, by=by)
        return {"schema_version": SCHEMA_VERSION, "usd_per_h": body.usd_per_h}


async def _aside(asked: bytes) -> dict[str, Any]:
    """In a process of its own, which is ended where it takes too long."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sublet.api.what_if.process", stdin=PIPE, stdout=PIPE
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(asked), LIMIT_S + 2 * GRACE_S)
    except TimeoutError:
        out = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not out:
        why = "no future was lived to its end in time, or there was no memory for it"
        raise Infeasible(why, binding="seconds", needed=LIMIT_S, available=0.0, hint="ask for fewer hours")
    found: dict[str, Any] = json.loads(out)
    if "error" in found:
        raise BadInput("what-if", str(found["error"]).partition("\n")[0], hint="ask for fewer hours")
    return found
