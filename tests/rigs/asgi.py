"""The whole server in this process: requests go straight to the application, over a controller on a cloud in memory."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit

from sublet import plugins
from sublet.api.routes import application
from sublet.api.state import digest
from sublet.domain.budget import UNLIMITED
from sublet.runtime.clock import Clock
from sublet_lab.memory_cloud import MemoryCloud, api_over
from tests.rigs.story import LIMITS, OFFERS

PORT, TOKEN = 80, "t"


class Server:
    """An API, and a way to ask it over HTTP without a socket."""

    def __init__(self, api, cloud):
        self.api, self.cloud = api, cloud
        self.app = application(api, port=PORT, token_digest=digest(TOKEN))

    async def get(self, path):
        return await self._ask("GET", path, b"")

    async def post(self, path, body):
        """`body` is JSON to be, or bytes as they are."""
        return await self._ask("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())

    async def _ask(self, method, url, body):
        parts, sent = urlsplit(url), []
        headers = {"host": "127.0.0.1", "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        headers |= {"content-length": str(len(body))} if method == "POST" else {}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

        asked = []

        async def receive():
            if asked:  # whoever asks again waits for us to go away, which we do not
                await asyncio.Event().wait()
            asked.append(True)
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        try:
            await self.app(scope, receive, send)
        except Exception:
            if not sent:  # else a server would log it: the answer went out before
                raise
        text = b"".join(message.get("body", b"") for message in sent[1:])
        is_json = dict(sent[0]["headers"]).get(b"content-type", b"").startswith(b"application/json")
        return sent[0]["status"], json.loads(text) if is_json else text.decode()


@asynccontextmanager
async def serving(
    folder, *, policy="price", budget=UNLIMITED, limits=LIMITS, offers=OFFERS, speedup=60.0, cloud=None, crash=False
):
    """A server over a controller; leaving it shuts it down, or is a crash."""
    cloud = cloud or MemoryCloud(offers, Clock(speedup=speedup))
    policy = plugins.load("sublet.policies", policy)() if isinstance(policy, str) else policy
    with api_over(cloud, folder / "state", policy, budget=budget, limits=limits) as api:
        running = asyncio.create_task(api.run())
        await api.started()
        yield Server(api, cloud)
        if crash:
            await api._controller.abandon()
        else:
            await api.shutdown()
        await cloud.close()
        await asyncio.gather(running, return_exceptions=True)


async def ask(api, path, **query):
    """What an API answers to a request for this page."""
    _, body = await Server(api, cloud=None).get(f"{path}?{urlencode(query)}")
    return body
