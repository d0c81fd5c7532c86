"""A job for a container is refused when it is submitted, where no node could run it: before anything is paid."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from types import SimpleNamespace

import pytest

from sublet.errors import InvalidValue
from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.providers.aws.check import _containers
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.provider import AwsProvider
from sublet.runtime.providers.protocol import Contains
from sublet.runtime.providers.ssh.provider import SshProvider
from sublet.runtime.providers.ssh.steward import look_at_machine

JOB = JobSpec(name="job", argv=("true",), cwd="/", image="ubuntu:24.04", sdk=False)


def checked(tmp_path, why):
    carrier = FileSync(tmp_path, files=FILES, rng=RNG, engine=None, logs=None, elsewhere=True)
    carrier.no_containers = lambda: why

    async def no_buckets(spec, *, make):
        return []

    carrier.buckets = no_buckets
    return asyncio.run(carrier.check(JOB))


def test_a_job_for_a_container_is_refused_with_the_field_and_the_reason(tmp_path):
    assert checked(tmp_path, "") == []
    with pytest.raises(InvalidValue, match=r"resources\.image_id = 'ubuntu:24\.04'.*neither docker nor podman"):
        checked(tmp_path, "it has neither docker nor podman")


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        ([{"no_containers": "none"}, {"no_containers": "not allowed"}], True),
        ([{"no_containers": "none"}, {"no_containers": "", "containers": "docker"}], False),
        ([{"no_containers": "none"}, {}], False),  # a steward of an older version
        ([{"no_containers": "none"}, None], False),  # one that was never reached
    ],
)
def test_own_machines_refuse_where_every_one_has_said_that_it_has_nothing(found, refused):
    lines = {f"m{n}": SimpleNamespace(found=facts) for n, facts in enumerate(found)}
    why = SshProvider.no_containers(SimpleNamespace(_lines=lines))
    assert ("m0: none; m1: not allowed" in why) if refused else why == ""


def config(**facts):
    return AwsConfig(regions=("us-east-1",), instance_types=("g4dn.xlarge",), image="ami-1", **facts)


def test_on_aws_the_file_says_what_the_image_has():
    assert config().no_containers() == ""
    assert config(containers="docker").no_containers() == ""
    assert "neither docker nor podman" in config(containers="none").no_containers()
    assert "own_users" in config(containers="docker", own_users=True).no_containers()
    assert _containers(config()).hint.count("for-real") == 1
    assert _containers(config(containers="docker")).ok is True
    assert "refused" in _containers(config(containers="none")).text
    with pytest.raises(InvalidValue, match="containers"):
        config(containers="lxc")
    assert issubclass(AwsProvider, Contains)
    assert issubclass(SshProvider, Contains)


@pytest.mark.parametrize(("openssl", "lacks"), [("/usr/bin/openssl", []), (None, ["cryptography or openssl"])])
def test_a_machine_with_openssl_needs_no_cryptography_and_says_what_runs_containers(monkeypatch, openssl, lacks):
    there = {"numpy": True, "torch": True}
    monkeypatch.setattr(importlib.util, "find_spec", there.get)
    monkeypatch.setattr(shutil, "which", {"openssl": openssl}.get)
    found = look_at_machine()
    assert found["lacks"] == lacks
    assert (found["containers"], found["no_containers"]) == ("", "it has neither docker nor podman")
