"""The script that a rented machine runs at its first boot."""

from __future__ import annotations

import re
import shlex
from functools import cache

from sublet import data
from sublet.errors import InvalidValue
from sublet.runtime.agent.dialing import host_and_port
from sublet.runtime.file_sync.own_code import FETCH, own_code
from sublet.runtime.identity.names import CONTROLLER
from sublet.runtime.providers.aws.config import AwsConfig

__all__ = ["packages", "user_data"]

MOST_BYTES = 16_384  # what EC2 takes
SLACK_S = 60.0  # beyond the lease, for an agent that is saving its workers' state
INSTALL_S = 900.0  # to download torch
POLL_S = 5
BLANK = re.compile(r"@([A-Z_]+)@")


def user_data(node_id: str, token: str, config: AwsConfig, *, authority: str = "", poll_s: float = POLL_S) -> str:
    """The template with its blanks filled in; every value is quoted for the shell.

    If the controller is known by its authority, Sublet is fetched from it; else the image, or `install`, has it.
    """
    host, port = host_and_port(config.controller) if authority else ("", 0)
    values = {
        "TOKEN": token,
        "AUTHORITY": authority,
        "NODE": node_id,
        "ADDRESS": config.controller,
        "INSTALL": config.install,
        "RAY": config.ray,
        "PYTHON": config.python,
        "METADATA": config.metadata_url,
        "BOOT_S": f"{config.boot_s + INSTALL_S:.0f}",
        "LEASE_S": f"{config.lease_s + SLACK_S:.0f}",
        "POLL_S": f"{poll_s:g}",
        "CODE": own_code().digest if authority else "",
        "FETCH": FETCH,
    }
    quoted = {name: shlex.quote(value) for name, value in values.items()}
    quoted["PACKAGES"] = packages(config.install)
    more = ["--authority authority"] if authority else []
    quoted["FROM"] = shlex.join([host, str(port), CONTROLLER])
    more += ["--own-users"] if config.own_users else []
    quoted["MORE"] = " ".join([*more, *(f"--preload {shlex.quote(name)}" for name in config.preload)])
    text = BLANK.sub(lambda blank: quoted[blank[1]], _template())
    if len(text.encode()) > MOST_BYTES:
        raise InvalidValue("user data", f"{len(text.encode())} bytes", f"at most {MOST_BYTES}")
    return text


def packages(text: str) -> str:
    """Words for pip, as a shell would split them, each quoted."""
    try:
        return shlex.join(shlex.split(text))
    except ValueError as error:
        raise InvalidValue("install", text, f"words for pip ({error})") from None


@cache
def _template() -> str:
    return data.bundled("aws/user-data.sh").read_text(encoding="utf-8")
