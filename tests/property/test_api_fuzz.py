"""Whatever is sent to the server: it is taken or refused with a reason, and the server lives on."""

from __future__ import annotations

import asyncio
import dataclasses
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sublet.runtime.jobs.spec import JobSpec, spec_to_json
from tests.rigs.asgi import serving
from tests.rigs.sizes import examples
from tests.rigs.story import a_spec

FIELDS = sorted(field.name for field in dataclasses.fields(JobSpec))
HUGE = [10**400, -(10**400), 10**4000, 1e308, 1e-320, 5e-324, -1, 0, 10**9, 2**63, 2**31, float("nan"), float("inf")]
ODD = ["", " ", "..", "../../../x", "a/b", "\0", "a\0b", "a=b", "\ud800", "x" * 200_000, "\u202e", "n\n", "-x", ".x"]
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
nasty = st.one_of(st.sampled_from(HUGE), st.sampled_from(ODD), scalars)
values = st.recursive(
    nasty,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(ODD), st.text(max_size=5)), inner)
    ),
    max_leaves=8,
)
jobs = st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.sampled_from(ODD)), values, max_size=4)
verbs = st.sampled_from(["cancel", "pause", "resume", "scale", "top-up"])
refs = st.sampled_from(["j", "j-1", "none", "%00", "%F0%9F", "x" * 3000])


@st.composite
def requests(draw):
    """(method, path, body)."""
    match draw(st.integers(0, 6)):
        case 0:
            return "POST", "/v1/jobs", {"job": {**spec_to_json(a_spec(), secrets=True), **draw(jobs)}}
        case 1:
            return "POST", "/v1/dry-run", {"job": {**spec_to_json(a_spec(), secrets=True), **draw(jobs)}}
        case 2:
            keys = ["low", "high", "now", "usd", "x"]
            return "POST", f"/v1/jobs/{draw(refs)}/{draw(verbs)}", draw(st.dictionaries(st.sampled_from(keys), nasty))
        case 3:
            keys = ["burn_limit_usd_per_h", "average_usd_per_h", "purse_usd", "usd"]
            path = draw(st.sampled_from(["/v1/budget", "/v1/budget/top-up"]))
            return "POST", path, draw(st.dictionaries(st.sampled_from(keys), nasty))
        case 4:
            numbers = [0, -1, 10**30, 2**53, 2**63, 2**64, "x", "", "%2e%2e%2fx", "%00"]
            name = draw(st.sampled_from(["after", "limit", "job", "rank", "worker", "tail"]))
            paths = ["/v1/events", "/v1/cost", *(f"/v1/jobs/{draw(refs)}{verb}" for verb in ("", "/log", "/explain"))]
            return "GET", f"{draw(st.sampled_from(paths))}?{name}={draw(st.sampled_from(numbers))}", b""
        case 5:
            return (
                "POST",
                draw(st.sampled_from(["/v1/jobs", "/v1/dry-run", "/v1/budget"])),
                draw(st.binary(max_size=60)),
            )
        case _:
            depth = draw(st.sampled_from([10, 5000, 200_000]))
            return "POST", "/v1/jobs", b'{"job":' + b"[" * depth + b"]" * depth + b"}"


def test_no_request_ever_makes_the_server_fail(tmp_path):
    outside = set(tmp_path.iterdir())
    loop = asyncio.new_event_loop()
    world = serving(tmp_path)
    server = loop.run_until_complete(world.__aenter__())

    @settings(max_examples=examples(250), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(requests())
    def ask(request):
        method, path, body = request
        ask_it = server.get(path) if method == "GET" else server.post(path, body)
        status, answer = loop.run_until_complete(ask_it)
        assert status < 500, (path, body, answer)
        assert json.dumps(answer)

    try:
        ask()
        status, _ = loop.run_until_complete(server.get("/readyz"))
        assert status == 200
    finally:
        loop.run_until_complete(world.__aexit__(None, None, None))
        loop.close()
    assert set(tmp_path.iterdir()) - outside == {tmp_path / "state"}  # nothing was written beside it
