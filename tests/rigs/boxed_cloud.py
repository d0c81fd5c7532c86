"""The AWS provider on hosts that boot: what EC2 says and what is on are the same, and nothing is left on."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from sublet.domain.offer import Market
from sublet.runtime.clock import Clock
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.image import Image
from tests.rigs.moto_cloud import ACCOUNT, AwsRig, a_config, tag

AGENT = "/opt/agent"  # in place of python: providers are tested, not agents, and it takes no time to start


@functools.cache
def the_box() -> Box:
    """One for all tests of this process; NoBox where none can be made."""
    here = Box(Image(files={AGENT: "#!/bin/sh\nexec sleep 600\n"}))
    atexit.register(here.close)
    return here


class BoxedAwsRig(AwsRig):
    """A corner of the box's account."""

    def __init__(self):
        self.box = the_box()
        AwsRig._rigs += 1
        self.server_id = f"boxed-{os.getpid()}-{AwsRig._rigs}"
        self.folder = Path(tempfile.mkdtemp(prefix="sublet-aws-"))
        self.clock = Clock()
        os.environ.update(ACCOUNT)

    def provider(self, *, supply=None, **knobs):
        facts = {
            "endpoint_url": self.box.endpoint,
            "python": AGENT,
            "markets": (Market.SPOT,),
            "controller": f"tls:{self.box.address}:7777",
        }
        return super().provider(config=a_config(most_nodes=supply, **facts), **knobs)

    def rows(self):
        pages = self.box.cloud.client("ec2").get_paginator("describe_instances")
        found = pages.paginate(Filters=[{"Name": "tag:sublet:server", "Values": [self.server_id]}])
        rows = [row for page in found for group in page["Reservations"] for row in group["Instances"]]
        return [row for row in rows if row["State"]["Name"] in ("pending", "running")]

    def kill(self, node_id):
        """Its power fails, once it is on."""
        (instance_id,) = [row["InstanceId"] for row in self.rows() if tag(row, "node") == node_id]
        self.box.host(instance_id).cut_off()

    def clean_up(self):
        left = self.left()
        for node_id in set(left):
            self.kill(node_id)
        self.box.wait_for(0)
        assert self.box.troubles == []
        shutil.rmtree(self.folder)
        return left
