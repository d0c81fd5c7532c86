"""Whether the buckets of a job can be brought to a node, asked before one is rented: are they there, and how large?

    python -m sublet.runtime.file_sync.buckets --make URI URI ...   one line of JSON for each

The controller runs it in a process of its own, so that a store that does not answer delays nothing. If a job brings
keys of its own, they are used, and none of the controller's (`access`). A bucket after `--make` is made where there is
none.

The variables of a job for a process of the controller that opens its bucket: keys, and no more. Any other variable
could make it run a command of the job's (a profile with `credential_process`), or send what is signed with the
controller's keys, or its role's token, to an address of the job's.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sublet.errors import InvalidValue, MissingExtra, SubletError
from sublet.machine.objects import StoreFailed
from sublet.machine.remote import is_missing, is_remote, open_uri
from sublet.runtime.jobs.spec import JobSpec

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
MOST_BYTES: Final = 256 << 30  # of one bucket, or what a URI names of it: it has to lie on the disk of a node
MOST_OBJECTS: Final = 1_000_000
ANSWER_S: Final = 120.0  # for all of a job: a page of a list is a thousand objects
MAKE: Final = "--make"


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


async def check_buckets(spec: JobSpec, *, make: bool) -> list[str]:
    """Notes on them; InvalidValue where one cannot be had, with its size where that is why."""
    asked = {there: uri for there, uri in spec.mounts.items() if is_remote(uri)}
    if not asked:
        return []
    env = access_of(os.environ, {**spec.env, **spec.secrets})
    if env is None:
        return [
            f"file_mounts: {', '.join(asked)} are at an address of the job's own, which the controller does not ask"
        ]
    new = {asked[there] for there in spec.new_mounts}
    words = [word for uri in asked.values() for word in ([MAKE, uri] if make and uri in new else [uri])]
    answers = await asyncio.to_thread(_ask, words, env)
    if not make:  # it will be there
        answers = [
            {**answer, "why": ""} if answer["missing"] and uri in new else answer
            for uri, answer in zip(asked.values(), answers, strict=True)
        ]
    return judge(asked, spec.kept_mounts, answers)


def judge(asked: Mapping[str, str], kept: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """By what was answered for each.

    A bucket that is only read may be open to nodes alone; one that they write must be open to us.
    """
    notes = []
    for (there, uri), answer in zip(asked.items(), answers, strict=True):
        field = f"file_mounts.{there}"
        if answer["why"] and (answer["missing"] or there in kept):
            raise InvalidValue(field, uri, f"a bucket that can be had: {answer['why']}")
        if answer["why"]:
            notes.append(f"{field}: {uri} cannot be seen from the controller, and may not be from nodes")
        elif answer["bytes"] > MOST_BYTES or answer["objects"] > MOST_OBJECTS:
            some = f"{answer['bytes'] / (1 << 30):.1f} GiB in {answer['objects']:,} objects, or more"
            most = f"{MOST_BYTES >> 30} GiB in {MOST_OBJECTS:,} objects"
            raise InvalidValue(field, uri, f"at most {most}, since all of it lies on each node; it has {some}")
        elif not answer["objects"] and there not in kept:
            raise InvalidValue(field, uri, "the URI of something; nothing is there")
    return notes


def _ask(words: Sequence[str], env: Mapping[str, str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-P", "-m", "sublet.runtime.file_sync.buckets", *words]
    count = sum(word != MAKE for word in words)
    try:
        done = subprocess.run(  # noqa: S603 - ourselves
            command, env=env, capture_output=True, text=True, check=False, timeout=ANSWER_S
        )
        found = [json.loads(line) for line in done.stdout.splitlines()]
        why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        found, why = [], f"no answer for {ANSWER_S:g} s"
    return found if len(found) == count else [{"bytes": 0, "objects": 0, "missing": False, "why": why}] * count


def measure(uri: str, *, make: bool) -> tuple[int, int]:
    """How much there is below it, or as one object of that name: bytes, objects; as far as that may be."""
    try:
        found = _measure(uri)
    except StoreFailed as error:
        if not (make and is_missing(error)):
            raise
        _make_bucket(uri)
        return 0, 0
    if found == (0, 0) and uri.count("/") > 2:  # noqa: PLR2004 - of the scheme: it names more than a bucket
        above, _, name = uri.rstrip("/").rpartition("/")
        try:
            return open_uri(above).look(name).size, 1
        except FileNotFoundError:
            return 0, 0
    return found


def _measure(uri: str) -> tuple[int, int]:
    size = count = 0
    for found in open_uri(uri).walk():
        size, count = size + found.size, count + 1
        if size > MOST_BYTES or count > MOST_OBJECTS:
            break
    return size, count


def _make_bucket(uri: str) -> None:
    scheme, _, name = uri.partition("://")
    if scheme != "s3":
        hint = f"make it yourself, and say source: {uri}"
        raise StoreFailed(uri, "there is no such bucket, and only those of s3 are made by Sublet", hint=hint)
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise MissingExtra("boto3, which makes buckets,", "aws") from None
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or boto3.session.Session().region_name
    where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region not in (None, "us-east-1") else {}
    try:
        boto3.client("s3", region_name=region).create_bucket(Bucket=name.partition("/")[0], **where)
    except (BotoCoreError, ClientError) as error:
        hint = "make it yourself, or let this account make it (s3:CreateBucket)"
        raise StoreFailed(uri, f"the bucket cannot be made: {error}", hint=hint, lasting=True) from error


def main(words: Sequence[str]) -> int:
    """A line for each URI."""
    make = False
    for word in words:
        if word == MAKE:
            make = True
            continue
        size, count, why, missing = 0, 0, "", False
        try:
            size, count = measure(word, make=make)
        except (SubletError, OSError) as error:
            why, missing = " ".join(str(error).split()), isinstance(error, StoreFailed) and is_missing(error)
        print(json.dumps({"bytes": size, "objects": count, "missing": missing, "why": why}))  # noqa: T201 - its answer
        make = False
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
