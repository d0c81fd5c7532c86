"""What of a job's variables comes to processes of the controller's: its keys, and nothing that runs or leads away."""

from __future__ import annotations

import os

import pytest

from sublet.runtime.controller.files import buckets as bucket_copies
from sublet.runtime.controller.files.buckets import CopyFailed, copy_in_process
from sublet.runtime.file_sync.buckets import access_elsewhere, access_of

OURS = {"PATH": "/bin", "AWS_ACCESS_KEY_ID": "ours", "AWS_SESSION_TOKEN": "ours", "AWS_ENDPOINT_URL": "http://s3"}
KEYS = {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SECRET_ACCESS_KEY": "s"}
EVIL = {
    "PYTHONPATH": "/evil",
    "LD_PRELOAD": "x",
    "AWS_CONFIG_FILE": "/x",
    "AWS_PROFILE": "p",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://evil",
    "GOOGLE_APPLICATION_CREDENTIALS": "/root/key.json",
}


def test_of_a_jobs_variables_its_keys_alone_come_to_the_controller():
    assert access_of(OURS, EVIL) == OURS
    assert access_of(OURS, {**KEYS, **EVIL}) == {"PATH": "/bin", "AWS_ENDPOINT_URL": "http://s3", **KEYS}
    assert access_of(OURS, {"AWS_ENDPOINT_URL": "http://s3"}) == OURS
    assert access_of(OURS, {**KEYS, "AWS_ENDPOINT_URL_S3": "http://elsewhere"}) is None
    assert access_of(OURS, {**KEYS, "GOOGLE_STORAGE_BASE_URL": "http://elsewhere"}) is None


@pytest.mark.parametrize("half", [{"AWS_ACCESS_KEY_ID": "theirs"}, {"AZURE_STORAGE_ACCOUNT_NAME": "theirs"}])
def test_half_a_key_is_none_since_the_role_of_the_machine_would_be_the_other_half(half):
    assert access_of(OURS, half) == OURS
    cloud = next(iter(half)).partition("_")[0]
    assert access_elsewhere(OURS, {**half, f"{cloud}_ENDPOINT": "http://evil"}) is None


def test_a_region_is_taken_and_an_address_that_says_it_is_one_is_not():
    assert access_of(OURS, {"AWS_REGION": "eu-west-1"}) == {**OURS, "AWS_REGION": "eu-west-1"}
    assert access_of(OURS, {"AWS_REGION": "x.evil.com/", "AWS_DEFAULT_REGION": "evil.com#-a"}) == OURS


def test_at_an_address_of_the_jobs_own_there_is_nothing_of_the_controllers():
    there = {"AWS_ENDPOINT_URL": "http://minio"}
    assert access_elsewhere(OURS, there) is None
    assert access_elsewhere(OURS, {**there, **KEYS, "GOOGLE_STORAGE_BASE_URL": "http://evil"}) is None
    env = access_elsewhere(OURS, {**there, **KEYS, **EVIL})
    assert env is not None
    assert env.pop("AWS_EC2_METADATA_DISABLED") == "true"
    assert {env.pop("AWS_CONFIG_FILE"), env.pop("AWS_SHARED_CREDENTIALS_FILE")} == {os.devnull}
    assert env == {"PATH": "/bin", **there, **KEYS}


def test_a_copy_runs_with_that_and_with_nothing_of_ours_where_that_would_be_sent_away(monkeypatch):
    seen = []

    def run(command, *, env, **more):
        seen.append((command, env))
        raise OSError("enough")

    monkeypatch.setattr(bucket_copies.subprocess, "run", run)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ours")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "ours")
    with pytest.raises(CopyFailed, match="enough"):
        copy_in_process("s3://x/y", "/here", keep=3, access=EVIL)
    command, env = seen.pop()
    assert env == dict(os.environ)
    assert "-P" in command  # what lies in the working directory is not run
    with pytest.raises(CopyFailed, match="no keys of the controller's are sent"):
        copy_in_process("s3://x/y", "/here", keep=3, access={"AWS_ENDPOINT_URL": "http://evil"})
    assert not seen
    with pytest.raises(CopyFailed, match="enough"):
        copy_in_process("s3://x/y", "/here", keep=3, access={"AWS_ENDPOINT_URL": "http://minio", **KEYS})
    assert "ours" not in seen.pop()[1].values()
