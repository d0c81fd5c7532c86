"""AWS on loopback: a moto server in a process of its own, and the rig that the provider's conformance suite runs on."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from urllib.request import Request, urlopen

import boto3

from sublet.domain.offer import Market
from sublet.market.catalogue import load_catalogue
from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.calls import Calls, client_maker
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.offers import offers_from
from sublet.runtime.providers.aws.provider import AwsAccount, AwsProvider
from sublet.testing.rigs import with_fields

REGION = "us-east-1"
KIND = "g4dn.xlarge"
IMAGE = "ami-03cf127a"  # one that moto knows
ACCOUNT = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": REGION}
UP_WITHIN_S = 120.0


@cache
def moto() -> str:
    """The address of a server that lives as long as this process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("moto_server")
    server = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    atexit.register(_end, server)
    end_s = time.monotonic() + UP_WITHIN_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            assert server.poll() is None, "moto_server ended at once"
            assert time.monotonic() < end_s, "moto_server never answered"
            time.sleep(0.02)
        else:
            return f"http://127.0.0.1:{port}"


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


def forget_all() -> None:
    """An empty account: moto's listings slow down with the square of what it remembers, ended instances too."""
    with urlopen(Request(f"{moto()}/moto-api/reset", method="POST")) as answer:  # noqa: S310 - on loopback
        assert answer.status == 200


@cache
def account(region: str = REGION):
    """EC2 as the owner of the account sees it."""
    os.environ.update(ACCOUNT)
    return boto3.client("ec2", region_name=region, endpoint_url=moto())


@cache
def _catalogue():
    return load_catalogue()


def a_config(**facts) -> AwsConfig:
    given = {"regions": (REGION,), "instance_types": (KIND,), "image": IMAGE, "controller": "tcp:127.0.0.1:7777"}
    return AwsConfig(**{**given, "endpoint_url": moto(), "preload": (), **facts})


def instances(server_id: str, region: str = REGION) -> list[dict]:
    """Every instance with this server's tag, as EC2 describes it."""
    pages = account(region).get_paginator("describe_instances")
    answer = pages.paginate(Filters=[{"Name": "tag:sublet:server", "Values": [server_id]}])
    return [row for page in answer for reservation in page["Reservations"] for row in reservation["Instances"]]


def tag(row: dict, name: str) -> str:
    return {each["Key"]: each["Value"] for each in row["Tags"]}[f"sublet:{name}"]


class AwsRig:
    """A corner of the account of its own: whatever has this rig's server tag."""

    offer_id = f"aws:{REGION}:use1-az1:{KIND}:spot"
    _rigs = 0

    def __init__(self):
        AwsRig._rigs += 1
        self.server_id = f"rig-{os.getpid()}-{AwsRig._rigs}"
        self.folder = Path(tempfile.mkdtemp(prefix="sublet-aws-"))
        self.clock = Clock()
        os.environ.update(ACCOUNT)
        forget_all()

    def provider(self, *, supply=None, **knobs):
        config = knobs.pop("config", None) or a_config(most_nodes=supply, markets=(Market.SPOT,))
        calls = knobs.pop("calls", None) or Calls(client_maker(config.endpoint_url))
        facts = {"state_dir": self.folder, "clock": self.clock, "server_id": self.server_id, "poll_s": 0.1}
        offers = offers_from(config, _catalogue())
        facts |= {"config": config, "calls": calls, "offers": offers, "prices_s": None}
        return AwsProvider(**with_fields(AwsAccount, "account", facts | knobs))

    def rows(self):
        return [row for row in instances(self.server_id) if row["State"]["Name"] in ("pending", "running")]

    def left(self):
        return sorted(tag(row, "node") for row in self.rows())

    def kill(self, node_id):
        ids = [row["InstanceId"] for row in self.rows() if tag(row, "node") == node_id]
        assert ids
        account().terminate_instances(InstanceIds=ids)

    def clean_up(self):
        left = self.left()
        for node_id in set(left):
            self.kill(node_id)
        shutil.rmtree(self.folder)
        return left
