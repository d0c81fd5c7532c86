"""One real agent on this machine, and an engine to speak with it."""

from __future__ import annotations

from contextlib import asynccontextmanager

from sublet.testing.rigs import Ears, until
from sublet.wire.messages import Dismiss, Hello


@asynccontextmanager
async def agent(rig, **knobs):
    """One agent `n` and an engine to speak with it; dismissed at the end."""
    engine, ears = rig.engine(), Ears()
    await engine.open(ears.hear)
    engine.expect("n", "token")
    rig.agent("n", "token", **knobs)
    await ears.next(Hello)
    try:
        yield lambda message: engine.send("n", message), ears
    finally:
        engine.send("n", Dismiss())
        await until(lambda: not rig.left())
        await engine.close()
