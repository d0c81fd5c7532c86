"""The other end of the wire: one function per kind of request, over the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from sublet.api.state import StateDir
from sublet.errors import BadInput, NoController, NoSuchJob, Refused
from sublet.machine.rng import RNG
from sublet.runtime.controller_host.record import HostRecord, on_host
from sublet.runtime.settings import LOOPBACK, default_state_dir

FAR_S = 30.0  # through ssh, from anywhere
TIMEOUT_S = 10.0  # a controller answers in milliseconds, on a busy machine in a second or two
FIRST_ERROR = 400
CHUNK = 1 << 14


def segment(text: str) -> str:
    """A user's name for a job, as one part of a path."""
    if not re.fullmatch(r"[\w.-]+", text):
        raise NoSuchJob(text, ())  # no job has such a name
    return quote(text, safe="")


@dataclass(slots=True)
class Meter:
    """Bytes that were sent to a controller, with their headers; what ssh or TLS adds is not in them."""

    sent: int = 0


class _Metered(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, timeout: float, meter: Meter) -> None:
        super().__init__(host, port, timeout=timeout)
        self._meter = meter

    def send(self, data: Any) -> None:
        self._meter.sent += len(data)
        super().send(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Asks one controller."""

    host: str
    port: int
    token: str = field(repr=False)
    timeout_s: float = TIMEOUT_S  # without an answer, or a further part of it
    pid: int = 0  # its process; 0 = not known
    named: str = ""  # host:port that it knows itself by, where that is not what we dial
    remote: bool = False  # it does not see our files
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)

    @property
    def address(self) -> str:
        """For people."""
        return f"http://{self.host}:{self.port}"

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """An answer, or the error that the controller told."""
        return self._request("GET", path + _query(query), None, {})

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str = "") -> dict[str, Any]:
        """The same for what changes something. Asked again with the same `key`, it happens once."""
        text = json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key or RNG.token(16)}
        return self._request("POST", path, text, headers)

    def stream(self, path: str, **query: Any) -> Iterator[bytes]:
        """Bytes as they come, until the controller has no more; one that follows waits for them without an end."""
        connection = _Metered(self.host, self.port, self.timeout_s, self.meter)
        try:
            response = self._response(connection, "GET", path + _query(query), None, {})
            if query.get("follow") and connection.sock is not None:
                connection.sock.settimeout(None)
            if response.status >= FIRST_ERROR:
                raise _error_from(response.status, response.read())
            while chunk := response.read1(CHUNK):
                yield chunk
        except TimeoutError:
            raise self._silence() from None
        except (OSError, http.client.HTTPException) as error:
            raise NoController(self.address, f"it went away ({type(error).__name__})") from None
        finally:
            connection.close()

    def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> dict[str, Any]:
        connection = _Metered(self.host, self.port, self.timeout_s, self.meter)
        try:
            response = self._response(connection, method, path, body, headers)
            text = response.read()
        except TimeoutError:
            raise self._silence() from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NoController(self.address, why.lower()) from None
        finally:
            connection.close()
        if response.status >= FIRST_ERROR:
            raise _error_from(response.status, text)
        try:
            found = json.loads(text)
        except ValueError:
            raise NoController(self.address, "another program answers there") from None
        return dict(found)

    def _silence(self) -> NoController:
        if process_is_stopped(self.pid):
            why = f"its process {self.pid} is stopped"
            return NoController(self.address, why, hint=f"kill -CONT {self.pid} lets it go on", silent=True)
        why = f"it has said nothing for {self.timeout_s:g} s, and may have heard what was asked"
        ends = f"; if it stays so, kill {self.pid} and 'sublet up', which takes over what is rented" if self.pid else ""
        return NoController(self.address, why, hint=f"try again, and see controller.log{ends}", silent=True)

    def _response(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        named = {"Host": self.named} if self.named else {}
        connection.request(method, path, body, {"Authorization": f"Bearer {self.token}", **named, **headers})
        return connection.getresponse()


def connect(state_dir: Path | None = None, environment: Mapping[str, str] = os.environ) -> Client:
    """The controller of `$SUBLET_SERVER` and `$SUBLET_TOKEN`, or of the state directory, here or on its host."""
    if state_dir is None and (server := environment.get("SUBLET_SERVER")):
        parts = urlsplit(server)
        if parts.scheme != "http" or parts.hostname not in LOOPBACK or parts.port is None:
            raise BadInput("SUBLET_SERVER", f"{server!r} is no loopback address", hint="give http://127.0.0.1:PORT")
        return Client(host=parts.hostname, port=parts.port, token=environment.get("SUBLET_TOKEN", ""))
    state = StateDir(state_dir or default_state_dir(environment))
    if (record := on_host(state.path)) is not None:
        return _through(record, state.path)
    address = state.address()
    return Client(host=address.host, port=address.port, token=state.token(), timeout_s=TIMEOUT_S, pid=address.pid)


def _through(record: HostRecord, state_dir: Path) -> Client:
    """By ssh, as long as this process lives."""
    from sublet.runtime.controller_host.channel import open_way

    port, facts, token = open_way(record, state_dir)
    named = f"{facts['host']}:{facts['port']}"
    return Client(host="127.0.0.1", port=port, token=token, timeout_s=FAR_S, named=named, remote=True)


def _query(query: Mapping[str, Any]) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value not in (None, "")
    }
    return f"?{urlencode(given)}" if given else ""


def _error_from(status: int, text: bytes) -> Refused:
    try:
        facts = json.loads(text)
        said = str(facts["error"]) + (f"\n  next: {facts['next']}" if facts.get("next") else "")
        return Refused(said, exit_code=int(facts["exit_code"]), status=status)
    except (ValueError, KeyError, TypeError):
        return Refused(f"the controller answered {status}", status=status)


STOPPED = ("T", "t")  # as ps shows it: by a signal, by a debugger


def process_is_stopped(pid: int) -> bool:
    """Whether it lives and does nothing until it is told to go on; False where it is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] in STOPPED
    except (OSError, IndexError):
        return False
