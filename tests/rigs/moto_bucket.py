"""S3 on loopback: a bucket of the moto server, and what a process must have in its environment to find it."""

from __future__ import annotations

import os
from unittest.mock import patch

import boto3

from sublet.train.checkpoint.checkpoints import newest
from tests.rigs.moto_cloud import ACCOUNT, REGION, moto

BUCKET = "checkpoints"


def environment() -> dict[str, str]:
    """Where the bucket is, and who may write there."""
    return {**ACCOUNT, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": moto()}


def a_bucket(prefix: str) -> str:
    """The URI of a prefix in it; the bucket is made where there is none."""
    with patch.dict(os.environ, environment()):
        boto3.client("s3", region_name=REGION).create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/{prefix}"


def newest_in(uri: str):
    """What a reader of the bucket would load."""
    with patch.dict(os.environ, environment()):
        return newest(uri)
