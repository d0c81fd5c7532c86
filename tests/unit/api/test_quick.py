"""What is answered without the framework is what the framework answers; what is not plain, the framework answers."""

from __future__ import annotations

import asyncio

import pytest

from sublet.api import quick
from sublet.api.routes import routes_to
from sublet.runtime.jobs.file import job_from_command
from tests.rigs.asgi import Server
from tests.rigs.in_memory_api import InMemoryApi


def both(folder, path, **facts):
    """The answers of the whole server and of its routes alone, and whether the routes were asked by the server."""

    async def asked():
        api = InMemoryApi(folder)
        await api.submit(job_from_command(["true"], name="e-1a"))
        api.change("j1-e-1a", **facts)
        whole, plain = Server(api, None), Server(api, None)
        plain.app = routes_to(api)
        documents = []
        kept, quick._document = quick._document, lambda found: documents.append(kept(found)) or documents[-1]
        try:
            found = await whole.get(path)
        finally:
            quick._document = kept
        return found, await plain.get(path), not documents

    return asyncio.run(asked())


@pytest.mark.parametrize(
    "path",
    ["/v1/budget", "/v1/jobs/j1-e-1a", "/v1/jobs/e-1a", "/v1/jobs/j1", "/v1/events?after=0", "/v1/events?after=1"],
)
def test_the_answer_is_that_of_the_routes(tmp_path, path):
    found, routed, by_routes = both(tmp_path, path, reason="weil's größer ist: <b>", loss=0.1 + 0.2)
    assert found == routed
    assert found[0] == 200
    assert not by_routes


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/jobs/nobody", 404),
        ("/v1/jobs/e-1a?x=1", 200),
        ("/v1/jobs/e-1a/", 307),
        ("/v1/events?after=-1", 422),
        ("/v1/events?after=1&limit=0", 422),
        ("/v1/events?after=99999999999999999999", 422),
        ("/v1/budget?x=1", 200),
        ("/v1/health", 200),
    ],
)
def test_what_is_not_plain_is_answered_by_the_routes(tmp_path, path, status):
    found, routed, by_routes = both(tmp_path, path)
    assert found == routed
    assert by_routes
    assert found[0] == status


def test_a_loss_that_is_no_number_is_not_known(tmp_path):
    found, routed, _ = both(tmp_path, "/v1/jobs/e-1a", loss=float("nan"))
    assert found == routed
    assert found[1]["loss"] is None
