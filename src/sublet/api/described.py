"""Answers in `/v1/openapi.json`: their fields, units and all, out of the types and comments of the views.

FastAPI would describe answers by checking each one against a model, on the loop of the controller; here tests do.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sublet.api.guard import SCHEMA_VERSION
from sublet.api.what_if.views import WhatIfView
from sublet.runtime.controller_api import views
from sublet.runtime.controller_api.budgets import PurseRow
from sublet.runtime.controller_api.history import PriceView
from sublet.runtime.controller_api.protocol import Submitted
from sublet.runtime.controller_api.remaining import ForecastView
from sublet.runtime.controller_api.tokens import Scope, TokenView
from sublet.runtime.controller_api.trials import TrialView

Answer = Any  # a view, or fields by name
JOB, BUDGET, PURSES = views.JobView, views.BudgetView, {"purses": list[PurseRow]}
ANSWERS: Mapping[tuple[str, str], tuple[str, Answer]] = {
    ("get", "/v1/jobs"): ("All jobs that are remembered, in order of submission.", {"jobs": list[views.JobView]}),
    ("post", "/v1/jobs"): ("Bring a job.", Submitted),
    ("post", "/v1/dry-run"): ("What would become of a job; nothing is kept.", views.DryRunView),
    ("get", "/v1/jobs/{ref}"): ("One job, by its id, its name, or the beginning of its id.", JOB),
    ("post", "/v1/jobs/{ref}/cancel"): ("End it: with a last checkpoint, or now.", JOB),
    ("post", "/v1/jobs/{ref}/pause"): ("Save it and take its workers away, until it is resumed.", JOB),
    ("post", "/v1/jobs/{ref}/resume"): ("Let it go on.", JOB),
    ("post", "/v1/jobs/{ref}/top-up"): ("Let it spend more.", JOB),
    ("post", "/v1/jobs/{ref}/scale"): ("Other worker counts from now on.", JOB),
    ("get", "/v1/jobs/{ref}/explain"): ("Why it has what it has, and what else was weighed.", views.ExplainView),
    ("get", "/v1/jobs/{ref}/losses"): (
        "Step and loss, since the controller began.",
        {"losses": list[tuple[int, float]]},
    ),
    ("get", "/v1/events"): ("The history, oldest first.", {"events": list[views.EventView]}),
    ("get", "/v1/cost"): ("The bill of one job, or of all.", views.CostView),
    ("get", "/v1/budget"): ("What may be spent, and what is.", BUDGET),
    ("post", "/v1/budget"): ("Other limits; what is left out stays.", BUDGET),
    ("post", "/v1/budget/top-up"): ("Put more into the total budget.", BUDGET),
    ("get", "/v1/forecast"): ("When all that runs ends, and what it costs until then.", ForecastView),
    ("get", "/v1/budgets"): ("The tree of budgets; for a user, the visible part.", PURSES),
    ("post", "/v1/budgets"): ("What all, a team, a user or a job may spend.", PURSES),
    ("get", "/v1/nodes"): ("Every node that is not gone, and those that went lately.", {"nodes": list[views.NodeView]}),
    ("get", "/v1/prices"): ("What a node of each offer has cost over time.", {"prices": list[PriceView]}),
    ("get", "/v1/health"): ("Whether the controller is alive and well.", views.HealthView),
    ("post", "/v1/shutdown"): ("Save and stop every job, give everything back, and end.", {"stopping": bool}),
    ("get", "/healthz"): ("It answers.", {"ok": bool}),
    ("get", "/readyz"): ("It is well; else 503, and why not.", {"ok": bool, "why": str}),
    ("get", "/v1/me"): ("The caller and its scope.", {"who": str, "scope": Scope, "live": bool}),
    ("post", "/v1/sessions"): ("A link that lets one browser in, once.", {"path": str, "seconds": float}),
    ("post", "/v1/sessions/end"): ("The cookie that asks opens nothing any more.", {"ended": bool}),
    ("post", "/v1/job-files/check"): ("A job file as a job.", {"name": str, "job": dict[str, Any], "notes": list[str]}),
    ("get", "/v1/tokens"): ("Keys for others, without what opens anything.", {"tokens": list[TokenView]}),
    ("post", "/v1/tokens"): ("A key, shown this once.", {"name": str, "scope": Scope, "token": str}),
    ("post", "/v1/tokens/{name}/revoke"): ("It opens nothing any more.", {"name": str, "revoked": bool}),
    ("post", "/v1/what-if"): ("Futures of all that runs.", WhatIfView),
    ("post", "/v1/plans/dry-run"): ("The plan under other terms.", TrialView),
    ("post", "/v1/value-of-time"): ("What an hour of a job is worth.", {"usd_per_h": float}),
    ("post", "/v1/parts/whole"): ("Whether all files of a job are here.", {"whole": bool}),
    ("post", "/v1/parts/lacking"): ("Which parts are not.", {"lacking": list[str]}),
    ("post", "/v1/parts"): ("Here they are.", {"taken": int}),
}
OTHERWISE: Mapping[tuple[str, str], tuple[str, str]] = {  # what is no JSON
    ("get", "/v1/jobs/{ref}/log"): ("What it printed, as a stream.", "text/plain"),
    ("get", "/v1/live"): ("", "text/event-stream"),
    ("get", "/metrics"): ("For Prometheus.", "text/plain"),
}
PLAIN: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    Any: {},
}
COMMENT = re.compile(r"^    (\w+): [^#\n]*#\s*(.+)$", re.MULTILINE)


def describe_answers(app: FastAPI) -> None:
    """Describe the answers of an app that has all its routes."""

    def whole() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = _described(found)
        return app.openapi_schema

    app.openapi = whole  # type: ignore[method-assign] # as FastAPI would have it done


def _described(found: dict[str, Any]) -> dict[str, Any]:
    known = found.setdefault("components", {}).setdefault("schemas", {})
    for path, methods in found["paths"].items():
        for method, route in methods.items():
            text, answer = {**ANSWERS, **OTHERWISE}.get((method, path), ("", None))
            route.setdefault("description", text)
            good = next(response for status, response in route["responses"].items() if status.startswith("2"))
            if isinstance(answer, str):
                good["content"] = {answer: {"schema": {"type": "string"}}}
            elif answer is not None:
                version = {"schema_version": {"const": SCHEMA_VERSION}}
                schema = schema_of(answer, known)
                told = {"allOf": [schema, {"properties": version}]} if "$ref" in schema else schema
                good["content"] = {"application/json": {"schema": told}}
    return found


def schema_of(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of a type; views are put among the `known`, and pointed at."""
    if isinstance(kind, Mapping):
        fields = {name: schema_of(each, known) for name, each in kind.items()}
        return {"type": "object", "properties": fields, "required": list(fields)}
    if kind in PLAIN:
        return dict(PLAIN[kind])
    if is_typeddict(kind):
        return _view(kind, known)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"type": "string", "enum": [str(each) for each in kind]}
    origin, inner = get_origin(kind), get_args(kind)
    if origin is NotRequired:
        return schema_of(inner[0], known)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each, known) for each in inner]}
    if origin is tuple:
        return {"type": "array", "prefixItems": [schema_of(each, known) for each in inner]}
    if origin in (list, Sequence):
        return {"type": "array", "items": schema_of(inner[0], known)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1], known)}
    raise TypeError(kind)


def _view(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in known:
        known[kind.__name__] = {}  # a bill has bills in it
        said = _comments(kind)
        hints = get_type_hints(kind, include_extras=True)
        fields = {name: schema_of(each, known) for name, each in hints.items()}
        for name, field in fields.items():
            if name in said:
                fields[name] = {"description": said[name], **({"allOf": [field]} if "$ref" in field else field)}
        lacking = {name for name, each in hints.items() if get_origin(each) is NotRequired}
        known[kind.__name__] = {
            "type": "object",
            "description": inspect.cleandoc(kind.__doc__ or ""),
            "properties": fields,
            "required": [name for name in fields if name not in lacking],
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _comments(kind: Any) -> dict[str, str]:
    """Comments beside each field, also of the view that it extends."""
    source = inspect.getsource(kind)
    found: dict[str, str] = {}
    (said,) = ast.parse(source).body
    for base in said.bases if isinstance(said, ast.ClassDef) else ():
        if isinstance(base, ast.Name) and is_typeddict(above := getattr(sys.modules[kind.__module__], base.id)):
            found |= _comments(above)
    return found | {name: text.strip() for name, text in COMMENT.findall(source)}
