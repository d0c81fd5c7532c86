"""A key of a node's own and the request to sign it: by `cryptography`, or by the openssl that every image has."""

from __future__ import annotations

import shutil
import subprocess

from sublet.errors import MissingExtra
from sublet.runtime.identity.extra import certificates

__all__ = ["new_request"]

OPENSSL_S = 20.0
KEY = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
REQUEST = ("req", "-new", "-sha256", "-key", "/dev/stdin", "-subj", "/CN=node")


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
