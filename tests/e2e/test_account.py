"""A laptop with an account and nothing else: no aws.toml, no role, no group; and what becomes of credentials sent."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("cryptography")

from sublet.runtime.providers.aws.config import read_config
from sublet_lab.box.claim import NoBox
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.image import Image
from sublet_lab.box.sshd import service

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

SECRET = "a-secret-that-nobody-else-says"  # noqa: S105 - moto asks for none
ALIAS = "ubuntu:x:0:0::/root:/bin/bash\n"  # another name of root's, as the image for deep learning has a user
PYTHON = f'#!/bin/sh\nexec {sys.executable} "$@"\n'


@pytest.fixture
def box():
    passwd = Path("/etc/passwd").read_text(encoding="utf-8") + ALIAS
    files = {**service(), "/opt/pytorch/bin/python": PYTHON, "/etc/passwd": passwd}
    try:
        here = Box(Image(env={"OMP_NUM_THREADS": "1"}, files=files, sublet=False))
    except NoBox as error:
        pytest.skip(str(error))
    with here:
        client = here.cloud.client("ec2")
        for subnet in client.describe_subnets()["Subnets"]:  # its own network is the account's only one
            client.delete_subnet(SubnetId=subnet["SubnetId"])
        for network in client.describe_vpcs()["Vpcs"]:
            client.delete_vpc(VpcId=network["VpcId"])
        client.modify_subnet_attribute(
            SubnetId=here.subnet(), MapPublicIpOnLaunch={"Value": False}
        )  # none here has one
        yield here
        assert here.troubles == []


@pytest.fixture
def sublet(box, tmp_path):
    env = {**os.environ, **box.account, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": box.endpoint}
    env |= {"SUBLET_STATE": str(tmp_path / "state"), "HOME": str(tmp_path)}

    def run(*words):
        command = [sys.executable, "-m", "sublet", *words]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{_said(box)}"
        return done.stdout + done.stderr

    return run


def _said(box):
    paths = ["/var/log/user-data.log", "/var/log/service.log", "/root/.local/state/sublet/watchdog.log"]
    paths += ["/root/.local/state/sublet/controller.log"]
    return "".join(f"\n== {path}\n{host.machine.read(path)[-2000:]}" for host in box.hosts() for path in paths)


def _alive(box):
    rows = box.cloud.client("ec2").describe_instances()["Reservations"]
    return [row for group in rows for row in group["Instances"] if row["State"]["Name"] != "terminated"]


def test_an_account_is_enough_and_all_that_was_chosen_is_told(box, sublet, tmp_path):
    told = sublet("up", "--on", "aws", "--purse", "20")
    assert "you may close the lid" in told
    config = read_config(tmp_path / "state" / "aws.toml")
    for chosen in (config.regions[0], config.image, config.anchor_profile, *config.security_groups, config.anchor_type):
        assert chosen in told
    (anchor,) = _alive(box)
    assert anchor["InstanceType"] == config.anchor_type
    assert anchor["IamInstanceProfile"]["Arn"].endswith(config.anchor_profile)
    assert "there is no" not in sublet("up", "--on", "aws")  # the file is there now
    sublet("down")
    assert _alive(box) == []


def test_credentials_that_are_sent_stand_in_one_file_and_nowhere_else(box, sublet):
    told = sublet("up", "--on", "aws", "--purse", "20", "--send-credentials")
    (host,) = box.hosts()
    kept = "/root/.local/state/sublet/credentials.env"
    assert SECRET in host.machine.read(kept)
    assert host.machine.run("stat", "-c", "%a", kept).stdout.strip() == "600"
    shown = told + sublet("ps") + sublet("events")
    asked = box.cloud.client("ec2").describe_instance_attribute(InstanceId=host.instance_id, Attribute="userData")
    shown += b64decode(asked["UserData"]["Value"]).decode()
    shown += host.machine.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert "sublet.runtime.controller_host.watchdog" in shown  # it is where one would see it
    assert SECRET not in shown
    places = ("/root", "/run", "/tmp", "/var", "/etc")  # noqa: S108 - of the host
    found = host.machine.run("grep", "-rlsF", SECRET, *places).stdout.split()
    assert found == [kept]
    sublet("down")
    assert _alive(box) == []
