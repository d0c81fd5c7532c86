"""Sockets for agents: one that only this user can open, and the message when a port cannot be had."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.agent.dialing import address_from

__all__ = ["identity_of", "port_error", "private_socket", "refuse_taken", "remove_socket"]


def port_error(address: str, port: int, field: str, error: OSError) -> BadInput:
    """The port that the setting `field` names cannot be had."""
    why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    hint = f"see which process does with ss -ltnp 'sport = :{port}', and end it"
    hint += "; or set another port there, and let the tunnel end there" if field else ""
    return BadInput(f"{field} = {port}" if field else address, f"agents cannot be heard at {address}: {why}", hint=hint)


def refuse_taken(address: str, field: str = "") -> None:
    """An error as for a taken address; nothing is changed. `field` names the setting of its port."""
    _, place = address_from(address)
    if isinstance(place, str):
        _refuse_answering(place)
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server will
        try:
            probe.bind(place)
        except OSError as error:
            raise port_error(address, place[1], field, error) from error


def private_socket(path: str) -> socket.socket:
    """A socket that only this user can reach; one that a dead controller left is replaced."""
    _refuse_answering(path)
    Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise InvalidValue("address", f"unix:{path}", f"a path that can be listened on ({error})") from error
    finally:
        os.umask(mask)
    return listener


def identity_of(path: str) -> tuple[int, int] | None:
    """The identity of this file among others at the same place; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path of a socket is text
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def remove_socket(path: str, identity: tuple[int, int] | None) -> None:
    """Remove a socket without a listener; one that another process has put there since stays."""
    if identity is not None and identity_of(path) == identity:
        Path(path).unlink(missing_ok=True)


def _refuse_answering(path: str) -> None:
    if _answers(path):
        raise InvalidValue("address", f"unix:{path}", "free: another controller listens there; stop it first")


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
