"""The variables of a job for a process of the controller that opens its bucket: keys, and no more.

Any other variable could make it run a command of the job's (a profile with `credential_process`), or send what is
signed with the controller's keys, or its role's token, to an address of the job's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

__all__ = ["CLOUDS", "access_elsewhere", "access_of"]

CLOUDS: Final = ("AWS_", "AZURE_", "GOOGLE_")
# By cloud: what is access if it is given together. With less, libraries add what the controller's machine has.
KEYS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "AWS_": (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),),
    "AZURE_": (
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_SAS_TOKEN"),
    ),
    "GOOGLE_": (("GOOGLE_SERVICE_ACCOUNT_KEY",),),
}
WITH_KEYS: Final = ("AWS_SESSION_TOKEN",)
REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
REGION: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")  # it becomes part of an address, and must not be one
ADDRESS: Final = re.compile(r"(AWS|AZURE|GOOGLE)_.*(ENDPOINT|BASE_URL).*")
# Keys are all that is looked at: no file of the controller's, no role of its machine.
KEYS_ALONE: Final[Mapping[str, str]] = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
}


def access_of(ours: Mapping[str, str], jobs: Mapping[str, str]) -> dict[str, str] | None:
    """Our variables, with the job's keys in place of ours where it has some; None where it has another address."""
    if any(ours.get(name) != value for name, value in _addresses(jobs).items()):
        return None
    env = dict(ours)
    for cloud in CLOUDS:
        if keys := _keys(cloud, jobs):
            for name in [name for name in env if name.startswith(cloud) and not ADDRESS.fullmatch(name)]:
                del env[name]
            env |= keys
    return env | _regions(jobs)


def access_elsewhere(ours: Mapping[str, str], jobs: Mapping[str, str]) -> dict[str, str] | None:
    """For a store at an address of the job's own: nothing of what opens ours. None where the job has no keys for it."""
    addresses = _addresses(jobs)
    env = {name: value for name, value in ours.items() if not name.startswith(CLOUDS)}
    for cloud in {name[: name.index("_") + 1] for name in addresses}:
        if not (keys := _keys(cloud, jobs)):
            return None
        env |= keys
    return {**env, **addresses, **_regions(jobs), **KEYS_ALONE}


def _keys(cloud: str, jobs: Mapping[str, str]) -> dict[str, str]:
    for names in KEYS[cloud]:
        if all(jobs.get(name) for name in names):
            return {name: jobs[name] for name in (*names, *WITH_KEYS) if name in jobs and name.startswith(cloud)}
    return {}


def _addresses(jobs: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in jobs.items() if ADDRESS.fullmatch(name)}


def _regions(jobs: Mapping[str, str]) -> dict[str, str]:
    return {name: jobs[name] for name in REGIONS if REGION.fullmatch(jobs.get(name, ""))}
