"""The way from a laptop to its controller host: ssh to a pinned host key, by a key that was made for it.

At first nothing is known of the machine's host key. Its user data hold a nonce, and its boot writes HMAC(nonce, key) of
every host key down: a peer whose key lacks that is another machine, and is told nothing. From then on the key is
pinned.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import hmac
import json
import shlex
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from sublet.errors import NoController, Refused
from sublet.runtime.controller_host.parcel import PIECE_BYTES
from sublet.runtime.controller_host.record import HostRecord, folder_of
from sublet.runtime.file_sync.own_code import LOOK, UNPACK, Parcel
from sublet.runtime.providers.ssh.hostline import import_asyncssh

CONNECT_S = 30.0
ALIVE_S, MISSED = 10.0, 3
SHIP_S = 600.0
OPEN_S = 60.0
PROOF = "/run/sublet/proof"
LAST_BYTES = 500  # of what a command complained with


def new_key(state_dir: Path) -> str:
    """A key pair for this controller host alone, made where there is none; its public half."""
    asyncssh, path = import_asyncssh(), folder_of(state_dir) / "id_ed25519"
    if not path.is_file():
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    public: bytes = asyncssh.read_private_key(str(path)).export_public_key()
    return public.decode().strip()


@contextlib.asynccontextmanager
async def connected(record: HostRecord, state_dir: Path, *, pinned: bool = True) -> AsyncIterator[Any]:
    """A connection; NoController where there is none."""
    asyncssh = import_asyncssh()
    known: Any = ([asyncssh.import_public_key(record.host_key)], [], []) if pinned else None
    try:
        connection = await asyncio.wait_for(
            asyncssh.connect(
                record.address,
                record.port,
                config=[],
                username=record.user,
                client_keys=[str(folder_of(state_dir) / "id_ed25519")],
                known_hosts=known,
                agent_path=None,
                keepalive_interval=ALIVE_S,
                keepalive_count_max=MISSED,
                connect_timeout=CONNECT_S,
            ),
            CONNECT_S,
        )
    except (OSError, TimeoutError, asyncssh.Error) as error:
        why = f"it cannot be reached by ssh ({error or type(error).__name__})"
        hint = "'sublet up --on aws' looks at the controller host, and starts it again where it was stopped"
        raise NoController(f"controller host {record.instance} at {record.address}", why, hint=hint) from None
    async with connection:
        yield connection


async def meet(record: HostRecord, state_dir: Path) -> HostRecord:
    """With its host key, proven by the nonce; NoController while it is not up, Refused where it is another machine."""
    async with connected(record, state_dir, pinned=False) as connection:
        shown = connection.get_server_host_key().export_public_key().decode().split()[:2]
        told = await connection.run(f"cat {PROOF}", check=False)
    wanted = hmac.new(record.nonce.encode(), " ".join(shown).encode(), hashlib.sha256).hexdigest()
    proofs = str(told.stdout or "").split()
    if not proofs:
        raise NoController(f"controller host {record.instance}", "its first boot is not over")
    if not any(hmac.compare_digest(wanted, proof) for proof in proofs):
        raise Refused(
            f"what answers at {record.address} is not the controller host that was rented: it cannot prove its host key"
        )
    return replace(record, host_key=" ".join(shown))


class Remote:
    """Commands on a machine that we are connected to."""

    def __init__(self, connection: Any, record: HostRecord) -> None:
        self._connection, self._record = connection, record

    async def run(self, *words: str, data: bytes = b"", timeout_s: float = SHIP_S) -> bytes:
        """Its output; Refused with its last words where it fails."""
        return await self.shell(shlex.join(words), data=data, timeout_s=timeout_s)

    async def module(self, name: str, *words: str, data: bytes = b"") -> bytes:
        """The output of a module of ours over there."""
        return await self.shell(self._command(name, *words), data=data)

    async def shell(self, text: str, *, data: bytes = b"", timeout_s: float = SHIP_S) -> bytes:
        """A line for its shell."""
        done = await asyncio.wait_for(self._connection.run(text, input=data, encoding=None), timeout_s)
        self._check(done)
        return bytes(done.stdout or b"")

    async def send(self, pieces: Iterator[bytes], name: str, *words: str) -> None:
        """Input of a module of ours over there, piece by piece: the next is made when the one before has gone."""
        async with self._process(name, *words) as process:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and will say why
                while piece := await asyncio.to_thread(next, pieces, b""):
                    process.stdin.write(piece)
                    await asyncio.wait_for(process.stdin.drain(), SHIP_S)
                process.stdin.write_eof()
            self._check(await asyncio.wait_for(process.wait(), SHIP_S))

    async def fetch(self, file: IO[bytes], name: str, *words: str, data: bytes = b"") -> None:
        """Output of a module of ours over there, piece by piece, into a file."""
        async with self._process(name, *words) as process:
            process.stdin.write(data)
            process.stdin.write_eof()
            while piece := await asyncio.wait_for(process.stdout.read(PIECE_BYTES), SHIP_S):
                await asyncio.to_thread(file.write, piece)
            self._check(await asyncio.wait_for(process.wait(), SHIP_S))

    def _process(self, name: str, *words: str) -> Any:
        return self._connection.create_process(self._command(name, *words), encoding=None)

    def _command(self, name: str, *words: str) -> str:
        return f"PYTHONPATH={shlex.quote(self._record.code)} {shlex.join([self._record.python, '-m', name, *words])}"

    def _check(self, done: Any) -> None:
        if done.returncode:
            said = bytes(done.stderr or b"").decode(errors="replace").strip()[-LAST_BYTES:]
            raise Refused(f"on the controller host {self._record.instance}: {said or f'exit code {done.returncode}'}")


async def ship(remote: Remote, python: str, home: str, parcel: Parcel) -> str:
    """Our code, unless it is there; where it is."""
    there = await remote.run(python, "-c", LOOK, parcel.place)
    if there.strip() != b"1":
        await remote.run(python, "-c", UNPACK, parcel.place, parcel.digest, data=parcel.data)
    return f"{home}/{parcel.place}"


class HostWay:
    """A port on this machine's loopback that leads to the controller's API, for as long as this process lives."""

    def __init__(self, record: HostRecord, state_dir: Path) -> None:
        self._record, self._state_dir = record, state_dir
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready: Future[tuple[int, dict[str, Any], str]] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def open(self) -> tuple[int, dict[str, Any], str]:
        """(port here, the controller's address over there, its token)."""
        try:
            return self._ready.result(OPEN_S)
        except TimeoutError:
            raise NoController(f"controller host {self._record.instance}", "it says nothing", silent=True) from None

    @property
    def is_open(self) -> bool:
        """Until it is closed, or the connection breaks."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Nothing leads there any more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(CONNECT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._stay())
        self._loop.close()

    async def _stay(self) -> None:
        try:
            async with connected(self._record, self._state_dir) as connection:
                remote = Remote(connection, self._record)
                folder = shlex.quote(self._record.state_dir)
                try:
                    told = await remote.shell(f"cat {folder}/controller.json && echo && cat {folder}/token")
                except Refused:
                    failure = await remote.shell(f"cat {folder}/start-failure.txt 2>/dev/null || true")
                    raise _nobody(self._record, failure.decode(errors="replace").partition("\n")[2]) from None
                address, _, token = told.decode().strip().rpartition("\n")
                facts: dict[str, Any] = json.loads(address)
                listener = await connection.forward_local_port("127.0.0.1", 0, facts["host"], facts["port"])
                self._ready.set_result((listener.get_port(), facts, token.strip()))
                broken = asyncio.ensure_future(connection.wait_closed())
                over = asyncio.ensure_future(self._over.wait())
                await asyncio.wait({broken, over}, return_when=asyncio.FIRST_COMPLETED)
                listener.close()
                for task in (broken, over):
                    task.cancel()
        except Exception as error:  # noqa: BLE001 - any failure is told to the waiting side
            if self._ready.done():
                return
            self._ready.set_exception(error if isinstance(error, NoController) else _nobody(self._record, ""))


def _nobody(record: HostRecord, words: str) -> NoController:
    """On the controller host; `words` are the last ones of a controller that did not live there."""
    said = words.partition("\n  next: ")[0].strip()
    why = f"none lives on it: {said}" if said else "none answers on it"
    hint = "'sublet up --on aws' starts it again; watchdog.log and controller.log lie in its state directory"
    return NoController(f"controller host {record.instance}", why, hint=hint)


_ways: dict[tuple[Path, str, str], tuple[HostWay, tuple[int, dict[str, Any], str]]] = {}


def open_way(record: HostRecord, state_dir: Path) -> tuple[int, dict[str, Any], str]:
    """One for this process and this controller host, closed at its end."""
    key = (state_dir, record.instance, record.address)
    if key not in _ways or not _ways[key][0].is_open:
        way = HostWay(record, state_dir)
        _ways[key] = (way, way.open())
        atexit.register(way.close)
    return _ways[key][1]
