"""The way to an anchor: a host key that is proven once and pinned from then on, and the API at its end."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install '.[ssh]'")

from sublet.api.client import connect
from sublet.errors import NoController, Refused
from sublet.runtime.controller_host import channel, parcel
from sublet.runtime.controller_host.record import Home, HostRecord, folder_of, keep
from tests.rigs.in_memory_api import served
from tests.rigs.ssh_hosts import SshServer

NONCE = "told to nobody else"


@pytest.fixture
def server(tmp_path):
    (tmp_path / "ssh").mkdir()
    here = SshServer(tmp_path / "ssh")
    yield here
    here.close()


@pytest.fixture
def record(server, tmp_path):
    """Of an anchor that nobody has met yet; its key is in the laptop's state directory."""
    folder = folder_of(tmp_path / "laptop")
    folder.mkdir(parents=True)
    shutil.copy(server.key_file, folder / "id_ed25519")
    facts = {"region": "r", "token": "", "nonce": NONCE, "expires_unix": 0, "kind": "t", "user": "ada", "python": "p"}
    return HostRecord(**facts, address="127.0.0.1", port=server.port, instance="i-1")


def met(record, tmp_path):
    return asyncio.run(channel.meet(record, tmp_path / "laptop"))


def test_a_host_key_is_pinned_if_the_machine_proves_it_and_refused_if_not(server, record, tmp_path, monkeypatch):
    proof = tmp_path / "proof"
    monkeypatch.setattr(channel, "PROOF", str(proof))
    with pytest.raises(NoController, match="first boot"):
        met(record, tmp_path)
    shown = " ".join(server.host_key.split()[:2])
    told = hmac.new(NONCE.encode(), shown.encode(), hashlib.sha256).hexdigest()
    proof.write_text(f"{'0' * 64}\n", encoding="utf-8")
    with pytest.raises(Refused, match="cannot prove"):
        met(record, tmp_path)
    proof.write_text(f"{'0' * 64}\n{told}\n", encoding="utf-8")
    assert met(record, tmp_path).host_key == shown
    with pytest.raises(Refused, match="cannot prove"):  # another nonce proves nothing
        met(replace(record, nonce="other"), tmp_path)


def test_a_client_reaches_the_controller_through_ssh_and_nobody_who_shows_another_key(server, record, tmp_path):
    laptop = tmp_path / "laptop"
    with served(tmp_path / "there") as there:
        there_dir = str(there.state.path)
        pinned = replace(record, host_key=server.host_key, home=Home.ANCHOR, state_dir=there_dir)
        keep(laptop, pinned)
        client = connect(laptop)
        assert client.remote
        assert client.port != there.client.port
        assert client.get("/v1/jobs")["jobs"] == []
        assert connect(laptop) == client  # one way for one process
        channel._ways.popitem()[1][0].close()
        other = channel.new_key(tmp_path / "other")
        keep(laptop, replace(pinned, host_key=other))
        with pytest.raises(NoController, match="cannot be reached"):
            connect(laptop)
        keep(laptop, replace(pinned, state_dir=str(tmp_path / "nobody")))
        with pytest.raises(NoController, match="no controller answers"):
            connect(laptop)


def test_a_state_goes_over_the_way_in_pieces_and_comes_back(server, record, tmp_path):
    source, there = tmp_path / "laptop", tmp_path / "there"
    (source / "checkpoints").mkdir(parents=True)
    (source / "log.sqlite").write_bytes(b"")
    (source / "checkpoints" / "x").write_bytes(os.urandom(3 * parcel.PIECE_BYTES))
    code = str(Path(parcel.__file__).parents[3])
    pinned = replace(record, host_key=server.host_key, python=sys.executable, code=code)
    desk = "sublet.runtime.controller_host.desk"

    async def scene():
        async with channel.connected(pinned, source) as connection:
            remote = channel.Remote(connection, pinned)
            await remote.send(parcel.pack_state(source), desk, "put", str(there))
            with (tmp_path / "back").open("w+b") as file:
                await remote.fetch(file, desk, "get", str(there), data=b"{}")
                file.seek(0)
                parcel.unpack_state(file, tmp_path / "again")
            with pytest.raises(Refused, match="whole"):
                await remote.send(iter([b"no state"]), desk, "put", str(there))

    asyncio.run(scene())
    for place in (there, tmp_path / "again"):
        assert (place / "checkpoints" / "x").read_bytes() == (source / "checkpoints" / "x").read_bytes()


def test_the_key_of_an_anchor_is_its_owners_alone_and_made_once(tmp_path):
    first = channel.new_key(tmp_path)
    assert first == channel.new_key(tmp_path)
    assert first.startswith("ssh-ed25519 ")
    assert (folder_of(tmp_path) / "id_ed25519").stat().st_mode & 0o777 == 0o600
