"""How a node gets its certificate, and dials with it: one line of JSON there, one back, over TLS to a known authority.

    {"node": "n3", "secret": "...", "request": "-----BEGIN CERTIFICATE REQUEST-----..."}
    {"certificate": "-----BEGIN CERTIFICATE-----..."}

A controller that does not want it hangs up, and says nothing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.errors import MissingExtra
from sublet.machine.files import FILES, Files
from sublet.runtime.agent.dialing import host_and_port, is_secure
from sublet.runtime.identity.extra import certificates
from sublet.runtime.identity.names import CONTROLLER

OPENSSL_S = 20.0
KEY = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
REQUEST = ("req", "-new", "-sha256", "-key", "/dev/stdin", "-subj", "/CN=node")
LONGEST = 1 << 14  # bytes of either line
ENROL_S = 5.0  # for each step of it


def new_request() -> tuple[bytes, str]:
    """(key, request), both as text; MissingExtra where they cannot be made here."""
    try:
        made: tuple[bytes, str] = certificates().new_request()
    except MissingExtra:
        if (openssl := shutil.which("openssl")) is None:
            raise
        key = _run(openssl, KEY, b"")
        return key, _run(openssl, REQUEST, key).decode()
    return made


def _run(openssl: str, words: tuple[str, ...], said: bytes) -> bytes:
    """A key goes by standard input: no file, no command line has it."""
    done = subprocess.run([openssl, *words], input=said, capture_output=True, timeout=OPENSSL_S, check=True)  # noqa: S603 - our own words
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentRequest:
    """A node's request for a certificate."""

    node: str
    secret: str
    request: str


def asked_in(line: bytes) -> EnrolmentRequest | None:
    """The request in a line; None where that is nothing of the kind."""
    with contextlib.suppress(ValueError, RecursionError):
        facts: Any = json.loads(line)
        names = ("node", "secret", "request")
        if isinstance(facts, dict) and all(isinstance(facts.get(name), str) for name in names):
            return EnrolmentRequest(**{name: facts[name] for name in names})
    return None


def answer_to(certificate: str) -> bytes:
    """The line that a node waits for."""
    return json.dumps({"certificate": certificate}).encode() + b"\n"


class Passport:
    """The certificate of one node: got when it is first needed, kept in `folder`, shown on every line."""

    def __init__(self, node_id: str, secret: str, authority: str, folder: Path, *, files: Files = FILES) -> None:
        self._asks, self._authority, self._folder, self._files = (node_id, secret), authority, folder, files
        self._key, self._request = new_request()  # the same one at each try: a secret has one key
        self._context: ssl.SSLContext | None = None

    def secure(self, line: socket.socket, address: str) -> socket.socket:
        """The channel over an open connection: itself, or TLS before its handshake.

        OSError where no authority signs.
        """
        if not is_secure(address):
            return line
        if self._context is None:
            self._context = self._enrolled(address)
        return self._context.wrap_socket(line, server_hostname=CONTROLLER, do_handshake_on_connect=False)

    def _enrolled(self, address: str) -> ssl.SSLContext:
        """It waits, and may: without a line there is nothing else to do."""
        node_id, secret = self._asks
        asked = json.dumps({"node": node_id, "secret": secret, "request": self._request}).encode() + b"\n"
        context = self._trusting()
        with (
            socket.create_connection(host_and_port(address), ENROL_S) as plain,
            context.wrap_socket(plain, server_hostname=CONTROLLER) as line,
        ):
            line.sendall(asked)
            answer = b""
            while not answer.endswith(b"\n") and len(answer) <= LONGEST and (data := line.recv(LONGEST)):
                answer += data
        try:
            certificate = str(json.loads(answer)["certificate"])
        except (ValueError, TypeError, KeyError):
            raise ConnectionRefusedError("the controller does not sign for this node") from None
        path = self._folder / f"{node_id}.pem"
        self._files.write(path, self._key + certificate.encode(), durable=False)
        context.load_cert_chain(path)
        return context

    def _trusting(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self._authority)
        return context
