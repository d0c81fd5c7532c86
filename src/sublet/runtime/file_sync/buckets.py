"""Whether the buckets of a job can be brought to a node, asked before one is rented: are they there, and how large?

    python -m sublet.runtime.file_sync.buckets --make URI URI ...   one line of JSON for each

The controller runs it in a process of its own, so that a store that does not answer delays nothing. If a job brings
keys of its own, they are used, and none of the controller's (`access`). A bucket after `--make` is made where there is
none.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sublet.errors import InvalidValue, MissingExtra, SubletError
from sublet.machine.objects import StoreFailed
from sublet.machine.remote import is_missing, is_remote, open_uri
from sublet.runtime.file_sync.access import access_of
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["MOST_BYTES", "check_buckets", "judge", "measure"]

MOST_BYTES: Final = 256 << 30  # of one bucket, or what a URI names of it: it has to lie on the disk of a node
MOST_OBJECTS: Final = 1_000_000
ANSWER_S: Final = 120.0  # for all of a job: a page of a list is a thousand objects
MAKE: Final = "--make"


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
