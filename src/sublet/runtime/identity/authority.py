"""The authority of one state directory: it signs for its controller, and for each node whose secret it knows.

A node's secret is used once. A node sends a key of its own; the same key may come again, from a node whose answer was
lost on the way, and any other is refused. So an instance's user data, or a log, cannot be used to make a second node.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from pathlib import Path

from sublet.errors import BadInput, NoAccess
from sublet.machine.files import FILES, Files
from sublet.machine.wall import WALL, Wall
from sublet.runtime.identity.extra import certificates


class Authority:
    """Made where there is none; its key never leaves `folder`."""

    def __init__(self, folder: Path, *, files: Files = FILES, wall: Wall = WALL) -> None:
        self._folder, self._files, self._wall, self._made = folder, files, wall, certificates()
        path = folder / "authority.pem"
        try:
            self._pem = files.read(path)
        except FileNotFoundError:
            files.make_folder(folder / "used")
            self._pem = self._made.new_authority(wall.unix())
            files.write(path, self._pem)
        try:
            self.certificate: str = self._made.certificate_in(self._pem)  # what nodes know us by; no secret
        except ValueError as error:
            hint = "move it away: a new one is made, and nodes that run now have to be rented anew"
            raise BadInput(path, f"cannot be read ({error})", hint=hint) from None

    def door(self) -> ssl.SSLContext:
        """For a server: a peer without a certificate comes in to get one, a peer with another's does not come in."""
        path = self._folder / "controller.pem"  # ssl reads from files alone
        self._files.write(path, self._made.new_controller(self._pem, self._wall.unix()), durable=False)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(path)
        context.load_verify_locations(cadata=self.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def enrol(self, node_id: str, secret: str, request: str) -> str:
        """A certificate for the key of this request; NoAccess where the secret was used for another one."""
        try:
            key: str = self._made.key_asked_for(request)
            certificate: str = self._made.new_node(self._pem, request, node_id, self._wall.unix())
        except (ValueError, TypeError) as error:
            raise BadInput(f"the request of {node_id}", f"is none ({error})") from None
        path = self._folder / "used" / hashlib.sha256(secret.encode()).hexdigest()
        try:
            before = self._files.read(path).decode()
        except FileNotFoundError:
            self._files.write(path, key.encode())  # before anybody has the answer
            return certificate
        if not hmac.compare_digest(before, key):
            hint = "let the node end, and see which accounts can read its user data"
            raise NoAccess(f"enrolment of {node_id}", "its secret was used before, with another key", hint=hint)
        return certificate
