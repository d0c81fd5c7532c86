"""The box: an instance that EC2 shows becomes a host, one that it ends is gone, one that shuts itself down is ended.

with Box() as box:
    ...  # let a controller rent at box.endpoint, with `controller = "tls:{box.address}:PORT"` in aws.toml
    box.hosts()[0].cut_off()
"""

from __future__ import annotations

import threading
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from sublet_lab.box.claim import claim
from sublet_lab.box.cloud import ACCOUNT, REGION, Cloud
from sublet_lab.box.image import Image
from sublet_lab.box.machine import Machine
from sublet_lab.box.metadata import Metadata
from sublet_lab.box.network import Network

LOOK_S = 0.3  # between two looks at the account
OURS = "sublet:server"  # the tag of instances that Sublet rents
ON = ("pending", "running")


class Host:
    """An instance that is on, and what may happen to it."""

    def __init__(self, row: dict[str, Any], machine: Machine, metadata: Metadata, end: Callable[[str], None]) -> None:
        self.instance_id = str(row["InstanceId"])
        self.tags: dict[str, str] = {tag["Key"].removeprefix("sublet:"): tag["Value"] for tag in row.get("Tags", ())}
        self.machine, self.metadata, self._end = machine, metadata, end
        self._timers: list[threading.Timer] = []

    @property
    def node_id(self) -> str:
        """Sublet's name of it."""
        return self.tags.get("node", "")

    @property
    def address(self) -> str:
        """Its address for others."""
        return self.machine.cable.address

    def cut_off(self) -> None:
        """Lost without notice: not a packet more of it. EC2 knows at once."""
        self.machine.cut_off()
        self._end(self.instance_id)

    def notice(self, lead_s: float = 120.0) -> None:
        """It will be taken, and is told so; then it is."""
        self.metadata.announce(lead_s)
        self._later(lead_s, self.cut_off)

    def unplug(self, for_s: float | None = None) -> None:
        """A partition: it runs on, and nothing comes through; plugged in again after so long, or by `plug_in`."""
        self.machine.cable.pull()
        if for_s is not None:
            self._later(for_s, self.plug_in)

    def plug_in(self) -> None:
        """The partition is over."""
        if self.machine.is_on():
            self.machine.cable.put_back()

    def forget(self) -> None:
        """It is off: nothing is to happen to it any more."""
        for timer in self._timers:
            timer.cancel()
        self.metadata.close()

    def _later(self, wait_s: float, what: Callable[[], None]) -> None:
        timer = threading.Timer(wait_s, what)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()


class Box:
    """A cloud of its own with hosts of its own; NoBox where none can be made."""

    def __init__(self, image: Image | None = None) -> None:
        self._claim = claim()
        try:
            self._network = Network(self._claim)
            self.address = self._network.address  # of the controller, as hosts see it
            self._network.build()
            self.cloud = Cloud(self.address)
        except BaseException:
            self._claim.give_up()
            raise
        given = image or Image()
        found = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_DEFAULT_REGION": REGION, "AWS_REGION": REGION}
        self._image = replace(given, env={**found, **given.env})
        self._hosts: dict[str, Host] = {}
        self._seen: set[str] = set()  # instances that were started, ever
        self._lock = threading.RLock()
        self._over = threading.Event()
        self.troubles: list[Exception] = []  # errors in the background
        self._watch = threading.Thread(target=self._keep_looking, daemon=True)
        self._watch.start()

    @property
    def endpoint(self) -> str:
        """The endpoint of EC2 and S3, for all hosts."""
        return self.cloud.endpoint

    @property
    def account(self) -> dict[str, str]:
        """The variables that the controller finds its credentials by."""
        return dict(ACCOUNT)

    def subnet(self) -> str:
        """A new one with the box's own addresses: what is launched into it is where EC2 says that it is."""
        ec2 = self.cloud.client("ec2")
        with self._lock:
            network = ec2.create_vpc(CidrBlock=self._network.block)["Vpc"]["VpcId"]
            zone = f"{REGION}a"  # else any, and not in every zone there are GPUs
            made = ec2.create_subnet(VpcId=network, CidrBlock=self._network.block, AvailabilityZone=zone)
        return str(made["Subnet"]["SubnetId"])

    def hosts(self) -> list[Host]:
        """Those that are on, the oldest first."""
        with self._lock:
            return [host for host in self._hosts.values() if host.machine.is_on()]

    def host_of(self, node_id: str) -> Host:
        """The one that is this node."""
        return next(host for host in self.hosts() if host.node_id == node_id)

    def host(self, instance_id: str, patience_s: float = 60.0) -> Host:
        """The host of this instance, once it is on."""
        end_s = time.monotonic() + patience_s
        while instance_id not in self._hosts:
            assert time.monotonic() < end_s, f"{instance_id} was never on"
            time.sleep(LOOK_S / 10)
        return self._hosts[instance_id]

    def cut_off_all(self) -> None:
        """Every host at the same moment."""
        with self._lock:
            hosts = self.hosts()
            for host in hosts:  # first all are cut off, then they end
                host.unplug()
            for host in hosts:
                host.cut_off()

    def wait_for(self, count: int, patience_s: float = 60.0) -> list[Host]:
        """Until so many hosts are on."""
        end_s = time.monotonic() + patience_s
        while len(found := self.hosts()) != count:
            assert time.monotonic() < end_s, f"{len(found)} hosts are on, not {count}"
            time.sleep(LOOK_S)
        return found

    def left_on(self, patience_s: float = 60.0) -> int:
        """Hosts that are on and instances that are rented, where all should be gone; a moment late is not left."""
        end_s = time.monotonic() + patience_s
        while (left := max(len(self.hosts()), self._rented())) and time.monotonic() < end_s:
            time.sleep(LOOK_S)
        return left

    def _rented(self) -> int:
        with self._lock:
            pages = self.cloud.client("ec2").get_paginator("describe_instances").paginate()
            rows = [row for page in pages for group in page["Reservations"] for row in group["Instances"]]
        return sum(row["State"]["Name"] in ON for row in rows)

    def bucket(self, name: str) -> str:
        """A new one; its address for a job file."""
        with self._lock:
            self.cloud.client("s3").create_bucket(Bucket=name)
        return f"s3://{name}"

    def holds(self, address: str) -> bool:
        """Whether there is an object below this address."""
        name, _, prefix = address.removeprefix("s3://").partition("/")
        found = self.cloud.client("s3").list_objects_v2(Bucket=name, Prefix=f"{prefix}/", MaxKeys=1)
        return bool(found.get("Contents"))

    def close(self) -> None:
        """Everything ends, and nothing is left."""
        self._over.set()
        self._watch.join()
        with self._lock:
            for host in self._hosts.values():
                host.machine.cut_off()
                host.forget()
            self._hosts.clear()
        self.cloud.close()
        self._claim.give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------

    def _keep_looking(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                with self._lock:
                    self._look()
            except Exception as error:  # noqa: BLE001 - kept for a later look
                self.troubles.append(error)

    def _look(self) -> None:
        """Bring hosts to where EC2 says that they are, and EC2 to where hosts are."""
        pages = self.cloud.client("ec2").get_paginator("describe_instances").paginate()
        rows = [row for page in pages for group in page["Reservations"] for row in group["Instances"]]
        on = {row["InstanceId"] for row in rows if row["State"]["Name"] in ON}
        for row in rows:
            ours = any(tag["Key"] == OURS for tag in row.get("Tags", ()))
            if ours and row["InstanceId"] in on and row["InstanceId"] not in self._seen:
                self._boot(row)
        for instance_id, host in list(self._hosts.items()):
            if not host.machine.is_on() and instance_id in on:  # it was shut down from inside
                self._end(instance_id)
            if instance_id not in on or not host.machine.is_on():
                host.machine.cut_off()
                host.forget()
                del self._hosts[instance_id]

    def _boot(self, row: dict[str, Any]) -> None:
        instance_id = row["InstanceId"]
        self._seen.add(instance_id)
        ask = self.cloud.client("ec2").describe_instance_attribute
        told = ask(InstanceId=instance_id, Attribute="userData")["UserData"].get("Value", "")
        user_data, cable = b64decode(told), self._network.cable(row.get("PrivateIpAddress", ""))
        facts = {
            "user-data": user_data.decode(),
            "meta-data/instance-id": instance_id,
            "meta-data/instance-type": row["InstanceType"],
            "meta-data/local-ipv4": cable.address,
            "meta-data/placement/availability-zone": row["Placement"]["AvailabilityZone"],
            "meta-data/placement/region": REGION,
        }
        folder = self._claim.folder / instance_id
        folder.mkdir()
        metadata = Metadata(cable, facts, self.account)
        machine = Machine(cable, self._image, folder, user_data)
        self._hosts[instance_id] = Host(row, machine, metadata, self._end)

    def _end(self, instance_id: str) -> None:
        with self._lock:
            self.cloud.client("ec2").terminate_instances(InstanceIds=[instance_id])
