"""The files of a controller that others read: where it listens, the token that opens it, why it could not start."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sublet.errors import BadInput, NoController
from sublet.machine.rng import RNG
from sublet.runtime.private import OWNER_ONLY, private_file, private_folder

TOKEN_BYTES = 32


def read_only(token: str) -> str:
    """The token for reading, derived from this one; this one cannot be computed from it."""
    return hmac.new(token.encode(), b"read", hashlib.sha256).hexdigest()


def digest(token: str) -> bytes:
    """Digest that the server keeps instead of the token."""
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address and process of a controller."""

    host: str
    port: int
    pid: int
    version: str = ""

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class StateDir:
    """All files of one controller; only its owner may look in."""

    path: Path

    @property
    def settings(self) -> Path:
        """Settings of its start."""
        return self.path / "settings.json"

    @property
    def token_file(self) -> Path:
        """Token for everything."""
        return self.path / "token"

    @property
    def reader_file(self) -> Path:
        """Token for reading. Prometheus may take it as `credentials_file`."""
        return self.path / "token.read"

    @property
    def address_file(self) -> Path:
        """Present while a controller serves."""
        return self.path / "controller.json"

    @property
    def lock(self) -> Path:
        """Held by the one controller of this directory."""
        return self.path / "controller.lock"

    @property
    def failure(self) -> Path:
        """Why the last start failed."""
        return self.path / "start-failure.txt"

    @property
    def log(self) -> Path:
        """Output of the controller's process."""
        return self.path / "controller.log"

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock; it goes with the process, however it ends."""
        private_file(self.lock)
        with self.lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadInput(self.path, "another controller has this state directory", hint="sublet down") from None
            yield

    @property
    def in_use(self) -> bool:
        """Whether a controller has it now, or is on its way in or out."""
        try:
            with self.hold_lock():
                return False
        except BadInput:
            return True
        except OSError:  # no directory, no controller
            return False

    def prepare(self) -> None:
        """Make the directory, or say why it cannot be."""
        try:
            private_folder(self.path)
            self.write(self.path / ".probe", "")
            (self.path / ".probe").unlink()
        except OSError as error:
            why = f"the state directory cannot be written ({error.strerror})"
            raise BadInput(self.path, why, hint="set SUBLET_STATE to a directory of your own") from None

    def write(self, path: Path, text: str) -> None:
        """Whole or not at all, for the owner's eyes only."""
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "w") as file:
            file.write(text)
        part.replace(path)

    def new_token(self) -> bytes:
        """Write a fresh token, and that of readers; the digest of it is all that stays in memory."""
        token = RNG.token(TOKEN_BYTES)
        self.write(self.token_file, token)
        self.write(self.reader_file, read_only(token))
        return digest(token)

    def publish(self, address: Address) -> None:
        """Let clients find the controller."""
        self.write(self.address_file, json.dumps(asdict(address)))

    def withdraw(self, *, pid: int, token_digest: bytes) -> None:
        """Remove the address of this controller; that of a successor stays."""
        with contextlib.suppress(NoController):
            if self.address().pid == pid:
                self.address_file.unlink(missing_ok=True)
        with contextlib.suppress(NoController):
            if digest(self.token()) == token_digest:
                self.token_file.unlink(missing_ok=True)
                self.reader_file.unlink(missing_ok=True)

    def address(self) -> Address:
        """Its address; NoController if it does not listen."""
        try:
            return Address(**json.loads(self.address_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise NoController(self.path, "none was started with this state directory, or it was stopped") from None
        except (OSError, ValueError, TypeError) as error:
            raise NoController(self.path, f"{self.address_file.name} cannot be read ({error})") from None

    def token(self) -> str:
        """Its token."""
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise NoController(self.path, f"the token cannot be read ({error})") from None
