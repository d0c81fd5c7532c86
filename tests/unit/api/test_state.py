"""The files by which a controller is found: each takes back its own, and nothing of its successor's."""

from __future__ import annotations

import asyncio

from sublet.api.state import Address, StateDir, digest, read_only
from sublet.runtime.engines.local import LocalEngine


def test_a_controller_takes_its_address_and_its_token_back(tmp_path):
    state = StateDir(tmp_path)
    token_digest = state.new_token()
    state.publish(Address(host="127.0.0.1", port=1, pid=7))
    state.withdraw(pid=7, token_digest=token_digest)
    assert not state.address_file.exists()
    assert not state.token_file.exists()
    assert not state.reader_file.exists()


def test_what_a_successor_has_put_there_stays(tmp_path):
    state = StateDir(tmp_path)
    earlier = state.new_token()
    later = state.new_token()
    state.publish(Address(host="127.0.0.1", port=2, pid=8))
    state.withdraw(pid=7, token_digest=earlier)
    assert state.address().pid == 8
    assert digest(state.token()) == later
    assert state.reader_file.read_text() == read_only(state.token())


def test_one_that_was_never_published_leaves_nothing(tmp_path):
    state = StateDir(tmp_path)
    state.withdraw(pid=7, token_digest=state.new_token())
    assert not state.token_file.exists()


def test_an_engine_leaves_the_socket_of_its_successor(tmp_path):
    place = tmp_path / "agents.sock"

    async def live():
        earlier, later = LocalEngine(f"unix:{place}"), LocalEngine(f"unix:{place}")
        await earlier.open(lambda *_: None)
        place.unlink()  # by somebody who took the first for dead
        await later.open(lambda *_: None)
        await earlier.close()
        assert place.exists()
        await later.close()
        assert not place.exists()

    asyncio.run(live())
