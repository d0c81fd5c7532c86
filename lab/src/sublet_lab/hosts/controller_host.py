"""A controller in the box itself: on a controller host that it rents there, led from outside as a laptop leads it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from sublet.api.client import Client, connect
from sublet.api.sending import send_files
from sublet.errors import SubletError
from sublet.runtime.controller_host.life import ControllerHost
from sublet.runtime.jobs.spec import JobSpec, spec_to_json
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.renting import write_config
from sublet_lab.hosts.server import Server

PORT = 7070  # of a host of its own
ROLE = "anchor"


class HostedServer(Server):
    """As `Server`; its state is copied to a bucket, and comes back from there when the controller host is killed."""

    def __init__(self, folder: Path, box: Box, *, nodes: int, lease_s: float) -> None:
        super().__init__(folder, box, nodes=nodes, lease_s=lease_s)
        self.sent_bytes = 0  # for the files of the last job
        iam = box.cloud.client("iam")
        if ROLE not in [each["InstanceProfileName"] for each in iam.list_instance_profiles()["InstanceProfiles"]]:
            iam.create_instance_profile(InstanceProfileName=ROLE)
        facts: dict[str, Any] = {
            "anchor_user": "root",
            "anchor_subnet": box.subnet(),
            "anchor_profile": ROLE,
            "controller": "",
        }
        facts |= {"lease_s": lease_s, "anchor_backup": f"{box.bucket('anchors')}/{folder.parent.name}"}
        write_config(folder, box, PORT, facts)
        self._account = {**box.account, "AWS_ENDPOINT_URL": box.endpoint}
        self._before = {name: os.environ.get(name) for name in self._account}
        os.environ.update(self._account)  # the laptop is this process, until all is down

    def start(self) -> None:
        """Rented, or rented anew with what the last one knew."""
        asyncio.run(self._anchor().up(self.settings))

    def kill(self) -> None:
        """The controller host, as a cloud does it: at once, and for good."""
        self._box.host_of("anchor").cut_off()

    def down(self) -> None:
        """All back; what is left of one that was killed is the box's to end."""
        anchor = self._anchor()
        anchor.stop_there = self._ask_to_stop
        with contextlib.suppress(SubletError):
            asyncio.run(anchor.back())
        for name, value in self._before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})

    def submit(self, spec: JobSpec) -> str:
        """Its files first."""
        client = self._client()
        sent, self.sent_bytes = send_files(client, spec, self.state.path)
        return str(client.post("/v1/jobs", {"job": spec_to_json(sent, secrets=True)})["job_id"])

    def printed(self, job_id: str) -> dict[str, list[str]]:
        """Since the last controller host began: what was printed before is not in a backup."""
        found = defaultdict[str, list[str]](list)
        with contextlib.suppress(SubletError):
            stream = self._client().stream(f"/v1/jobs/{job_id}/log", every=True, lines=True)
            for line in b"".join(stream).decode(errors="replace").splitlines():
                facts: dict[str, Any] = json.loads(line)
                found[facts["worker"]].append(facts["line"])
        return found

    def _ask_to_stop(self) -> None:
        self._client().post("/v1/shutdown")

    def _client(self) -> Client:
        return connect(self.state.path)

    def _anchor(self) -> ControllerHost:
        return ControllerHost(state_dir=self.state.path, tell=lambda _: None)
