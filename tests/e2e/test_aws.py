"""`sublet check` and `sublet gc` against a moto server, and everything else without boto3."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sublet.api.state import StateDir
from sublet.runtime.agent import processes
from sublet.runtime.providers.aws.config import AwsConfig, read_config
from sublet.runtime.store import Store
from sublet.testing.rigs import LocalRig
from tests.rigs.moto_cloud import ACCOUNT, IMAGE, REGION, AwsRig, account, instances, moto

CONFIG = f"""
regions = ["{REGION}"]
instance_types = ["g4dn.xlarge"]
image = "{IMAGE}"
controller = "tcp:127.0.0.1:7777"
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "aws.toml").write_text(CONFIG + f'endpoint_url = "{moto()}"\n', encoding="utf-8")
    monkeypatch.setenv("SUBLET_STATE", str(folder))
    monkeypatch.delenv("SUBLET_AWS", raising=False)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def rig(state):
    """An account with one instance of the controller that lived in this state directory."""
    here = AwsRig()
    here.folder = state
    store = Store(state / "log.sqlite")
    store.put("server_id", here.server_id)
    store.close()

    async def rented():
        provider = here.provider()
        await provider.open(lambda _: None)
        await provider.rent("n1", here.offer_id, "token")
        await provider.close()

    asyncio.run(rented())
    yield here
    here.folder = state / "gone"
    here.folder.mkdir()
    here.clean_up()


# ---------------------------------------------------------------------- check


def test_check_looks_at_credentials_rights_regions_and_ages(sublet, state):
    answer = sublet("check", "-o", "json")
    assert answer.code == 0, answer.out
    checks = {row["name"]: row for row in answer.json["checks"]}
    assert answer.json["ok"] is True
    assert checks["credentials"]["ok"] is True
    assert "123456789012" in checks["credentials"]["text"]
    assert checks["expiry"]["text"] == "the credentials do not expire by themselves"
    assert checks["region us-east-1"]["text"] == "6 zones"
    assert checks["launch us-east-1 spot"]["ok"] is True
    assert checks["quota us-east-1 spot"]["ok"] is None  # moto has no quotas; not being allowed to see them is no fault
    assert "days old" in checks["prices"]["text"]
    assert checks["clock"]["ok"] is True
    assert instances("check") == []  # DryRun launched nothing


def test_check_fails_with_the_next_step_when_nobody_is_logged_in(sublet, state, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(state))
    answer = sublet("check")
    assert answer.code == 1
    assert "FAILED" in answer.out
    assert "aws configure" in answer.out


def test_check_without_a_file_is_content_unless_aws_is_asked_for(sublet, state):
    (state / "aws.toml").unlink()
    assert sublet("check").code == 0
    answer = sublet("check", "--provider", "aws")
    assert answer.code == 1
    assert "rent-on-aws.md" in answer.out.replace("\n  ", " ")


def test_a_setting_that_does_not_exist_is_named(sublet, state):
    (state / "aws.toml").write_text(CONFIG + 'region = "x"\n', encoding="utf-8")
    answer = sublet("check")
    assert answer.code == 1
    assert "no setting 'region'" in answer.out


def test_the_file_of_the_guide_can_be_read(tmp_path):
    guide = (Path(__file__).parents[2] / "docs/guides/rent-on-aws.md").read_text(encoding="utf-8")
    text = guide.split("```toml\n", 1)[1].split("```", 1)[0]
    path = tmp_path / "aws.toml"
    path.write_text(text, encoding="utf-8")
    assert isinstance(read_config(path), AwsConfig)


# ---------------------------------------------------------------------- rights


def allowed(policy, action, arn, **context):
    """Whether IAM would let it happen, as far as the conditions that we use go."""
    return any(
        action in statement["Action"]
        and any(fnmatch.fnmatchcase(arn, pattern) for pattern in statement["Resource"])
        and all(
            _holds(test, key, wanted, context)
            for test, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
        for statement in policy["Statement"]
        if statement["Effect"] == "Allow"
    )


def _holds(test, key, wanted, context):
    wanted = wanted if isinstance(wanted, list) else [wanted]
    if test == "ForAllValues:StringEquals":
        return all(value in wanted for value in context.get(key, ()))
    assert test == "StringEquals"
    return context.get(key) in wanted


def test_the_narrow_policy_allows_this_directory_its_own_and_nothing_of_anybody_elses(sublet, state):
    policy = sublet("check", "--iam").json
    assert sublet("check", "--iam").json == policy, "a directory has one name for good"
    store = Store(state / "log.sqlite")
    server = store.get("server_id")
    store.close()

    def launch(*, kind="g4dn.xlarge", region=REGION, server=server, resource="instance/*"):
        context = {"aws:RequestedRegion": region, "ec2:InstanceType": kind, "aws:RequestTag/sublet:server": server}
        return allowed(policy, "ec2:RunInstances", f"arn:aws:ec2:{region}:123456789012:{resource}", **context)

    def end(server, *, region=REGION):
        arn = f"arn:aws:ec2:{region}:123456789012:instance/i-1"
        return allowed(policy, "ec2:TerminateInstances", arn, **{"aws:ResourceTag/sublet:server": server})

    def renew(server, *keys):
        context = {"aws:ResourceTag/sublet:server": server, "aws:TagKeys": keys}
        return allowed(policy, "ec2:CreateTags", f"arn:aws:ec2:{REGION}:123456789012:instance/i-1", **context)

    for resource in ("instance/*", "volume/*", "subnet/subnet-1", "security-group/sg-1", "network-interface/*"):
        assert launch(resource=resource)
    assert allowed(policy, "ec2:RunInstances", f"arn:aws:ec2:{REGION}::image/{IMAGE}")
    assert allowed(policy, "ec2:DescribeInstances", "*", **{"aws:RequestedRegion": REGION})
    assert end(server)
    assert renew(server, "sublet:expires-at")
    assert not launch(kind="p5.48xlarge")
    assert not launch(region="eu-west-1")
    assert not launch(server=None)
    assert not launch(server="another")
    assert not end("another")
    assert not end(None)
    assert not end(server, region="eu-west-1")
    assert not renew("another", "sublet:expires-at")
    assert not renew(server, "sublet:server")
    assert not allowed(policy, "ec2:RunInstances", f"arn:aws:ec2:{REGION}::image/ami-0123")
    assert not allowed(policy, "ec2:DescribeInstances", "*", **{"aws:RequestedRegion": "eu-west-1"})
    assert not any("*" in action for statement in policy["Statement"] for action in statement["Action"])


def test_check_asks_for_a_launch_as_the_controller_that_would_make_it(sublet, state, monkeypatch):
    asked = []
    from sublet.runtime.providers.aws import check as aws_check

    request = aws_check.launch_request
    monkeypatch.setattr(aws_check, "launch_request", lambda *a, **k: asked.append(k["server"]) or request(*a, **k))
    store = Store(state / "log.sqlite")
    store.put("server_id", "mine")
    store.close()
    assert sublet("check", "-o", "json").code == 0
    assert set(asked) == {"mine"}
    assert instances("mine") == []


# ---------------------------------------------------------------------- gc


def test_gc_shows_and_ends_what_a_dead_controller_left_and_touches_nothing_without_our_tag(sublet, rig):
    strange = account().run_instances(ImageId=IMAGE, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1)
    stranger = strange["Instances"][0]["InstanceId"]
    answer = sublet("gc", "--dry-run", "-o", "json")
    assert answer.code == 0, answer.err
    ours = [row for row in answer.json["found"] if row["node"] == "n1" and row["orphan"]]
    assert len(ours) == 1
    assert rig.left() == ["n1"]
    answer = sublet("gc", "-y", "-o", "json")
    assert ours[0]["what"] in answer.json["ended"]
    assert stranger not in json.dumps(answer.json)
    assert rig.left() == []
    state = account().describe_instances(InstanceIds=[stranger])["Reservations"][0]["Instances"][0]["State"]["Name"]
    assert state == "running"
    account().terminate_instances(InstanceIds=[stranger])


def test_gc_leaves_alone_what_a_live_controller_has_and_what_another_one_renews(sublet, rig, state):
    with StateDir(state).hold_lock():
        (row,) = [row for row in sublet("gc", "-y", "-o", "json").json["found"] if row["node"] == "n1"]
        assert not row["orphan"]
    store = Store(state / "log.sqlite")
    store.put("server_id", "somebody else")
    store.close()
    (row,) = [row for row in sublet("gc", "-y", "-o", "json").json["found"] if row["node"] == "n1"]
    assert not row["orphan"]  # another controller's, and its expiry is in the future
    past = (datetime.now(UTC) - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    tags = [{"Key": "sublet:expires-at", "Value": past}]
    account().create_tags(Resources=[rig.rows()[0]["InstanceId"]], Tags=tags)
    assert rig.left() == ["n1"]
    assert row["what"] in sublet("gc", "-y", "-o", "json").json["ended"]
    assert rig.left() == []


def test_gc_in_a_copy_of_the_state_directory_leaves_alone_what_the_original_renews(sublet, rig, state, monkeypatch):
    copy = state.with_name("copy")
    shutil.copytree(state, copy)
    monkeypatch.setenv("SUBLET_STATE", str(copy))
    with StateDir(state).hold_lock():  # the original's controller runs
        (row,) = [row for row in sublet("gc", "-y", "-o", "json").json["found"] if row["node"] == "n1"]
    assert not row["orphan"], "nothing was renewed since the copy was made, but it is a copy"
    assert rig.left() == ["n1"]


def test_gc_in_an_old_backup_leaves_alone_what_was_renewed_since(sublet, rig, state):
    backup = state.with_name("backup")
    shutil.copytree(state, backup)

    async def renewed():
        later = rig.provider(unix_s=lambda: time.time() + 2400.0)
        await later.open(lambda _: None)
        await later.close()

    asyncio.run(renewed())
    shutil.rmtree(state)
    backup.rename(state)  # the same place on the same machine, of an earlier day
    (row,) = [row for row in sublet("gc", "-y", "-o", "json").json["found"] if row["node"] == "n1"]
    assert not row["orphan"]
    assert rig.left() == ["n1"]


def test_gc_ends_what_its_own_controller_renewed_before_it_died(sublet, rig):
    async def renewed():
        provider = rig.provider(unix_s=lambda: time.time() + 2400.0)
        await provider.open(lambda _: None)
        await provider.close()

    asyncio.run(renewed())
    assert sublet("gc", "-y", "-o", "json").json["ended"]
    assert rig.left() == []


def test_gc_ends_nothing_that_is_renewed_while_its_owner_thinks(sublet, rig, monkeypatch):
    async def renewed():
        provider = rig.provider(unix_s=lambda: time.time() + 2400.0)
        await provider.open(lambda _: None)
        await provider.close()

    def confirmed(question):
        asyncio.run(renewed())
        return True

    monkeypatch.setattr("typer.confirm", confirmed)
    answer = sublet("gc")
    assert answer.code == 1
    assert "renewed" in answer.err
    assert rig.left() == ["n1"]


def test_gc_in_a_copy_ends_no_process_of_the_original_on_this_machine(sublet, tmp_path, monkeypatch):
    local, copy = LocalRig(tmp_path / "state"), tmp_path / "copy"
    monkeypatch.delenv("SUBLET_AWS", raising=False)

    async def rented():
        provider = local.provider()
        await provider.open(lambda _: None)
        await provider.rent("n1", local.offer_id, "token")
        await provider.close()

    asyncio.run(rented())
    shutil.copytree(local.folder, copy, ignore=shutil.ignore_patterns("*.sock"))
    monkeypatch.setenv("SUBLET_STATE", str(copy))
    (row,) = sublet("gc", "-y", "-o", "json").json["found"]
    assert not row["orphan"]
    assert local.left() == ["n1"]
    monkeypatch.setenv("SUBLET_STATE", str(local.folder))
    assert sublet("gc", "-y").code == 0
    assert local.left() == []
    local.clean_up()


def test_gc_ends_processes_that_a_dead_controller_left_on_this_machine(sublet, tmp_path, monkeypatch):
    local = LocalRig(tmp_path / "state")
    monkeypatch.setenv("SUBLET_STATE", str(local.folder))
    monkeypatch.delenv("SUBLET_AWS", raising=False)

    async def rented():
        provider = local.provider()
        await provider.open(lambda _: None)
        await provider.rent("n1", local.offer_id, "token")
        await provider.close()

    asyncio.run(rented())
    assert local.left() == ["n1"]
    answer = sublet("gc", "--dry-run")
    assert "orphan" in answer.out
    assert local.left() == ["n1"]
    assert sublet("gc", "-y").code == 0
    assert local.left() == []
    assert "nothing of ours" in sublet("gc").out
    assert processes.look(os.getpid()) is not None
    local.clean_up()


# ---------------------------------------------------------------------- without boto3


def test_without_boto3_everything_else_works_and_aws_says_what_to_install(state):
    script = """
import sys
sys.modules["boto3"] = sys.modules["botocore"] = None
from sublet.cli.main import run
assert run(["policies"]) == 0
sys.exit(run(["check", "--provider", "aws"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "boto3 is not installed" in done.stdout
    assert "pip install '.[aws]'" in done.stdout


def test_boto3_is_imported_by_nobody_who_does_not_rent_on_aws():
    script = """
import sys
import sublet.runtime.controller_api.assemble, sublet.runtime.providers.aws.provider
import sublet.cli.main, sublet.cli.verbs.check, sublet.cli.verbs.gc
assert "boto3" not in sys.modules and "botocore" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
