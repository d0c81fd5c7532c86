"""The line to one machine: ssh, our code over there, and a steward that answers; dialled again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.errors import MissingExtra, RentFailed
from sublet.runtime.file_sync.own_code import LOOK, UNPACK, Parcel, own_code
from sublet.runtime.providers.ssh.config import Host

CONNECT_S = 10.0
ALIVE_S, MISSED = 5.0, 3  # between two signs of life, and how many may be missing
ANSWER_S = 60.0  # to import torch, at the worst
SHIP_S = 120.0
AGAIN_S, LONGEST_S = 1.0, 30.0  # until the line is dialled again; twice as long each time
LONGEST_LINE = 1 << 20

_log = logging.getLogger(__name__)


class HostAway(ConnectionError):
    """The machine cannot be asked just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How all machines are reached, and reach us."""

    server: str  # whose agents they are
    python: str
    preload: tuple[str, ...]
    back: tuple[int, int] | None  # port on the machine's loopback -> port here; None = they reach us by themselves
    gone_s: float = 120.0  # a machine that cannot be reached for so long counts as lost


def import_asyncssh() -> Any:
    """Or what to install."""
    try:
        import asyncssh
    except ImportError:
        raise MissingExtra("asyncssh, which reaches machines by ssh,", "ssh") from None
    return asyncssh


class HostLine:
    """`up`, `down` and `gone` are told when the machine can be asked, when it cannot, and when an agent has ended."""

    def __init__(
        self,
        host: Host,
        way: Way,
        *,
        up: Callable[[], None],
        down: Callable[[str], None],
        gone: Callable[[str], None],
    ) -> None:
        self.host, self._way = host, way
        self._up, self._down, self._gone = up, down, gone
        self.found: Mapping[str, Any] | None = None  # GPUs and CPUs, as the steward last saw them
        self.why = "not reached yet"  # it cannot be asked
        self.tried = asyncio.Event()  # once
        self._steward: Any = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """It can be asked."""
        return self._steward is not None

    def open(self) -> None:
        """Dial, and go on until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._stay())

    async def close(self) -> None:
        """Hang up; agents stay."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ask(self, what: str, **facts: Any) -> Any:
        """The steward's answer; HostAway where there is none, RentFailed where it refuses."""
        if self._steward is None:
            raise HostAway(f"{self.host.name} cannot be asked: {self.why}")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._steward.stdin.write(json.dumps({"id": number, "ask": what, **facts}) + "\n")
            return await asyncio.wait_for(asyncio.shield(answer), ANSWER_S)
        except TimeoutError:
            raise HostAway(f"{self.host.name} does not answer") from None
        except (BrokenPipeError, OSError) as error:
            raise HostAway(f"{self.host.name}: {error}") from error
        finally:
            self._asked.pop(number, None)

    # ------------------------------------------------------------------

    async def _stay(self) -> None:
        wait_s = AGAIN_S
        while True:
            try:
                self.why = await self._live_once() or "the connection ended"
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - a machine can fail to be reached in any way
                self.why = _reason(error, self.host)
            finally:
                was_up, self._steward = self.is_up, None
                for answer in self._asked.values():
                    if not answer.done():
                        answer.set_exception(HostAway(f"{self.host.name} went while it was asked"))
            self.tried.set()
            if was_up:
                wait_s = AGAIN_S
                self._down(self.why)
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, LONGEST_S)

    async def _live_once(self) -> str:
        """One connection, from its beginning to its end; the last words from over there."""
        asyncssh = import_asyncssh()
        async with await asyncio.wait_for(asyncssh.connect(**_options(asyncssh, self.host)), CONNECT_S) as connection:
            if self._way.back is not None:
                there, here = self._way.back
                await connection.forward_remote_port("127.0.0.1", there, "127.0.0.1", here)
            code = await self._ship(connection, own_code())
            command = [self._python(), "-m", "sublet.runtime.providers.ssh.steward", self._way.server]
            words = f"PYTHONPATH=$HOME/{shlex.quote(code)} exec {shlex.join([*command, *self._way.preload])}"
            steward = await connection.create_process(words, encoding="utf-8", bufsize=LONGEST_LINE)
            try:
                await self._listen(steward)
                return await _last_words(steward)
            finally:
                steward.close()

    async def _listen(self, steward: Any) -> None:
        async for line in steward.stdout:
            word = json.loads(line)
            if "gone" in word:
                self._gone(word["gone"])
            elif word["id"] == 0:
                self.found, self._steward, self.why = word["answer"], steward, ""
                self.tried.set()
                self._up()
            elif (answer := self._asked.get(word["id"])) is not None and not answer.done():
                if "refused" in word:
                    answer.set_exception(RentFailed(f"ssh:{self.host.name}", word["refused"]))
                else:
                    answer.set_result(word["answer"])

    async def _ship(self, connection: Any, parcel: Parcel) -> str:
        """Our code, unless it is there."""
        python = shlex.quote(self._python())
        look = f"{python} -c {shlex.quote(LOOK)} {shlex.quote(parcel.place)}"
        there = await asyncio.wait_for(connection.run(look, check=True), CONNECT_S)
        if there.stdout.strip() != "1":
            unpack = f"{python} -c {shlex.quote(UNPACK)} {shlex.quote(parcel.place)} {parcel.digest}"
            sending = connection.run(unpack, input=parcel.data, encoding=None, check=True)
            await asyncio.wait_for(sending, SHIP_S)
        return parcel.place

    def _python(self) -> str:
        return self.host.python or self._way.python


def _options(asyncssh: Any, host: Host) -> dict[str, Any]:
    options: dict[str, Any] = {
        "host": host.host or host.name,
        "keepalive_interval": ALIVE_S,
        "keepalive_count_max": MISSED,
        "connect_timeout": CONNECT_S,
    }
    if host.port:
        options["port"] = host.port
    if host.user:
        options["username"] = host.user
    if host.key:
        options["client_keys"] = [str(Path(host.key).expanduser())]
    if host.host_key:
        options["known_hosts"] = ([asyncssh.import_public_key(host.host_key)], [], [])
    return options


async def _last_words(steward: Any) -> str:
    """The error over there, in its own words: the last line that it complained with."""
    with contextlib.suppress(TimeoutError):
        told = await asyncio.wait_for(steward.stderr.read(), AGAIN_S)
        lines = [line.strip() for line in told.splitlines() if line.strip()]
        return lines[-1][:200] if lines else ""
    return ""


def _reason(error: Exception, host: Host) -> str:
    said: str | bytes | None = getattr(error, "stderr", None)  # of a command that failed over there
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    text = (text or str(error) or type(error).__name__).strip()
    if isinstance(error, FileNotFoundError) and host.key:
        return f"hosts.key = {host.key!r}: there is no such file; name that of its private key, or leave it out"
    if type(error).__name__ == "HostKeyNotVerifiable":
        return f"its host key is not known: say 'ssh {host.host or host.name}' once, or write host_key in hosts.toml"
    if type(error).__name__ == "PermissionDenied":
        return f"it does not let us in ({text}): check user and key, as 'ssh {host.host or host.name}' would"
    return text.splitlines()[-1][:200]
