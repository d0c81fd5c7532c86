"""The ssh server of a host, as an image has one: `python sshd.py`, as root, on port 22. It stands alone: see `service`.

Its host key is made at boot; a key of root's authorized_keys lets in, runs commands and forwards ports.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

KEYS = Path("/etc/ssh")
PORT = 22
USERS = ("root", "ubuntu")  # the second is another name of the first, where an image has it


def service() -> dict[str, str]:
    """Files of an image that has it running."""
    start = f"#!/bin/sh\nexec {sys.executable} /box/sshd.py\n"
    return {"/box/service": start, "/box/sshd.py": Path(__file__).read_text(encoding="utf-8")}


def _remove_old_keys() -> None:
    """Those of the machine that the box is on."""
    KEYS.mkdir(exist_ok=True)
    for old in KEYS.glob("ssh_host_*"):
        old.unlink()


async def _pour(source: Any, sink: Any) -> None:
    """Until its end, which is told to a command and not to a client: that one hears how the command ended."""
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    if isinstance(sink, asyncio.StreamWriter):
        sink.close()


async def serve() -> None:
    """Until the host is off."""
    import asyncssh

    _remove_old_keys()
    key = asyncssh.generate_private_key("ssh-ed25519")
    allowed = Path("/root/.ssh/authorized_keys")

    class Server(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return bool(username)

        def public_key_auth_supported(self) -> bool:
            return True

        def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
            known = allowed.read_text(encoding="utf-8").splitlines() if allowed.is_file() else []
            shown = key.export_public_key().decode().split()[:2]
            return username in USERS and any(line.split()[:2] == shown for line in known)

        def connection_requested(self, dest_host: str, *_: Any) -> bool:
            return dest_host == "127.0.0.1"

    async def run(process: asyncssh.SSHServerProcess[bytes]) -> None:
        child = await asyncio.create_subprocess_shell(
            process.command or "true",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/root",
            env=os.environ,
        )
        feeding = asyncio.ensure_future(_pour(process.stdin, child.stdin))
        await asyncio.gather(_pour(child.stdout, process.stdout), _pour(child.stderr, process.stderr))
        code = await child.wait()
        feeding.cancel()
        process.exit(code)

    await asyncssh.listen("", PORT, server_factory=Server, server_host_keys=[key], process_factory=run, encoding=None)
    (KEYS / "ssh_host_ed25519_key.pub").write_bytes(key.export_public_key())
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
