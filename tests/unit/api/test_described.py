"""What is said of the API: every route, every field of every answer; and that the page asks nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.api import console
from sublet.api.described import ANSWERS, OTHERWISE
from sublet.client import connect
from sublet.runtime.jobs.file import job_from_command
from tests.rigs.console import fleet

FOLDER = Path(console.__file__).parent
ASKED = re.compile(r"""["'`](/v1/[a-z/-]+)["'`?]""")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("described")) as there:
        found = connect(there.state.path)
        job = found.submit(replace(job_from_command(["true"], name="a", workers=(1, 2)), sdk=True))["job_id"]
        found.wait(job, until={"running"})
        yield found


def resolved(schema, whole):
    """Its fields, and those that must be there."""
    fields, required = {}, set()
    for part in schema.get("allOf", [schema]):
        if "$ref" in part:
            part = whole["components"]["schemas"][part["$ref"].rpartition("/")[2]]  # noqa: PLW2901 - what it points at
        fields |= part.get("properties", {})
        required |= set(part.get("required", ()))
    return fields, required


def faults(value, schema, whole, place="answer"):
    """Where a value is not as it is described; what is not described at all is one."""
    if "anyOf" in schema:
        each = [faults(value, one, whole, place) for one in schema["anyOf"]]
        return [] if not all(each) else min(each, key=len)
    if "allOf" in schema or "$ref" in schema or schema.get("type") == "object":
        if not isinstance(value, dict):
            return [f"{place}: {value!r} is no object"]
        if (more := schema.get("additionalProperties")) is not None:
            return [fault for name, each in value.items() for fault in faults(each, more, whole, f"{place}.{name}")]
        fields, required = resolved(schema, whole)
        found = [
            f"{place}.{name} is not described" for name in value if name not in fields and name != "schema_version"
        ]
        found += [f"{place}.{name} is not there" for name in required - value.keys()]
        return found + [
            f for name in value.keys() & fields for f in faults(value[name], fields[name], whole, f"{place}.{name}")
        ]
    if schema.get("type") == "array":
        kinds = schema.get("prefixItems") or [schema["items"]] * len(value)
        return [
            f
            for at, (each, kind) in enumerate(zip(value, kinds, strict=True))
            for f in faults(each, kind, whole, f"{place}[{at}]")
        ]
    plain = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    kind = schema.get("type")
    if kind and not isinstance(value, plain[kind]):
        return [f"{place}: {value!r} is no {kind}"]
    return [f"{place}: {value!r} is none of {schema['enum']}"] if value not in schema.get("enum", [value]) else []


def test_every_route_is_described_and_no_other(ours):
    whole = ours.line.get("/v1/openapi.json")
    routes = {(method, path) for path, methods in whole["paths"].items() for method in methods}
    assert routes == ANSWERS.keys() | OTHERWISE.keys()
    assert [(method, path) for method, path in routes if not whole["paths"][path][method]["description"]] == []


def test_answers_are_as_they_are_described(ours):
    whole = ours.line.get("/v1/openapi.json")
    for method, path in ANSWERS:
        if method == "get" and not path.startswith("/readyz"):
            answer = ours.line.get(path.replace("{ref}", "a-1"))
            schema = whole["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
            assert faults(answer, schema, whole, path) == []


def test_fields_have_their_units_as_the_views_do(ours):
    schemas = ours.line.get("/v1/openapi.json")["components"]["schemas"]
    assert schemas["JobView"]["properties"]["usd_useful"]["description"] == "work that counts"  # of the bill in it
    assert schemas["NodeView"]["properties"]["since_s"]["description"] == "when it was asked for"
    assert "never above" in schemas["BudgetView"]["properties"]["burn_limit_usd_per_h"]["description"]


def test_the_page_asks_for_nothing_that_is_not_described(ours):
    paths = ours.line.get("/v1/openapi.json")["paths"]
    asked = {path for file in FOLDER.glob("*.js") for path in ASKED.findall(file.read_text(encoding="utf-8"))}
    assert {"/v1/events", "/v1/live", "/v1/forecast"} & asked
    assert sorted(asked - paths.keys()) == []
    verbs = {
        verb
        for file in FOLDER.glob("*.js")
        for verb in re.findall(r'(?:jobPath\([\w.]+, |tell\()"([a-z-]+)"', file.read_text())
    }
    assert {f"/v1/jobs/{{ref}}/{verb}" for verb in verbs} <= paths.keys()
    assert len(verbs) > 5
