"""EC2 and S3 of a box: a moto server in a process of its own, which ends with its parent.

python -m sublet_lab.box.cloud ADDRESS      listens there, says where, and serves until its input ends
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from sublet_lab.box.claim import NoBox

REGION = "us-east-1"
ACCOUNT = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": REGION}
OWNER = "123456789012"  # the account of every caller at moto
END_S = 10.0


class Cloud:
    """The account of a box; `endpoint` is reached from this machine and from the hosts."""

    def __init__(self, address: str) -> None:
        if missing := [name for name in ("moto", "flask", "boto3") if find_spec(name) is None]:
            raise NoBox(f"{', '.join(missing)} is not installed: pip install './lab[box]' in your clone of Sublet")
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "sublet_lab.box.cloud", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"},  # no image is looked at, and they take a while
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self.close()
            raise NoBox(f"no moto server listens at {address}")
        self.endpoint = f"http://{address}:{port}"
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """As the owner of the account."""
        import boto3

        if service not in self._clients:
            keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
            self._clients[service] = boto3.session.Session(**keys).client(
                service, region_name=REGION, endpoint_url=self.endpoint
            )
        return self._clients[service]

    def close(self) -> None:
        """It ends, and everything in it is forgotten."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(address: str) -> None:
    """Until the input ends."""
    from moto.server import ThreadedMotoServer

    _publish_images()
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)  # an open line is not waited for


def _publish_images() -> None:
    """Public parameters that AWS has and moto has not: the newest images for deep learning."""
    from types import SimpleNamespace

    from moto.ssm.models import ssm_backends

    name = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id"
    value = "ami-03cf127a"
    facts = {"Name": name, "Type": "String", "Value": value, "Version": 1, "DataType": "aws:ec2:image"}
    made: Any = SimpleNamespace(name=name, value=value, version=1, labels=[], response_object=lambda *_: facts)
    known = ssm_backends[OWNER][REGION]._parameters  # noqa: SLF001 - names below /aws cannot be put from outside
    known[name].append(made)


if __name__ == "__main__":
    serve(sys.argv[1])
