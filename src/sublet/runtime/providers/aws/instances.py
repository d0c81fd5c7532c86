"""Instances as EC2 describes them, the request that makes one of ours, and the script of its first boot.

`<node>.json` states the intent before RunInstances, with all that the request says: a repeated request must be the same
to the letter, or EC2 refuses its client token. The instance follows when EC2 has named it. `regions.json` keeps every
region that was ever used, because an instance may be left in one that is no longer asked for.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from sublet import data
from sublet.domain.offer import Market, Offer
from sublet.errors import InvalidValue
from sublet.machine.files import FILES, Files
from sublet.runtime.agent.dialing import host_and_port
from sublet.runtime.file_sync.own_code import FETCH, own_code
from sublet.runtime.identity.names import CONTROLLER
from sublet.runtime.providers.aws.calls import Calls
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.written import read_written


def client_token(token: str, zone: str) -> str:
    """The token that makes a repeated launch the same one: 64 ASCII characters, the most that EC2 takes."""
    return hashlib.sha256(f"{token} {zone}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRecord:
    """One node. `instance` is "" while EC2 has not named one."""

    node_id: str
    offer_id: str
    token: str
    region: str
    zone: str  # its id; "" = wherever EC2 likes
    began_s: float  # cloud time of the order
    expires_unix: int  # as the tag says
    asked_s: float = -1.0  # cloud time of the last RunInstances; below 0 = none was sent
    instance: str = ""
    home: str = ""  # as the tag says: which directory it was asked for from
    renewed_unix: int = 0  # the latest expiry that we have asked EC2 to write; 0 = that of the launch

    @property
    def known_unix(self) -> int:
        """The latest expiry that this directory knows of: a tag beyond it was written from elsewhere."""
        return max(self.expires_unix, self.renewed_unix)


class InstanceRecords:
    """The folder `aws` of a state directory."""

    def __init__(self, folder: Path, *, files: Files = FILES) -> None:
        self._folder, self._files = folder, files
        files.make_folder(folder / "nodes")

    def write(self, record: InstanceRecord) -> None:
        """On disk when this returns."""
        self._files.write(self._path(record.node_id), json.dumps(asdict(record)).encode())

    def remove(self, node_id: str) -> None:
        """It does not exist."""
        self._files.remove(self._path(node_id))

    def read(self) -> dict[str, InstanceRecord]:
        """All that is written down; a file that cannot be read is set aside: tags tell what it would have."""
        return {record.node_id: record for record in read_written(self._files, self._folder / "nodes", InstanceRecord)}

    def regions(self, used: Iterable[str]) -> set[str]:
        """Every region ever used, these among them."""
        path = self._folder / "regions.json"
        try:
            known = set(json.loads(self._files.read(path)))
        except (OSError, ValueError, TypeError):
            known = set()
        together = known | set(used)
        if together != known:
            self._files.write(path, json.dumps(sorted(together)).encode())
        return together

    def _path(self, node_id: str) -> Path:
        return self._folder / "nodes" / f"{node_id}.json"


MOST_BYTES = 16_384  # what EC2 takes
SLACK_S = 60.0  # beyond the lease, for an agent that is saving its workers' state
INSTALL_S = 900.0  # to download torch
POLL_S = 5
BLANK = re.compile(r"@([A-Z_]+)@")
SERVER_TAG, NODE_TAG, OFFER_TAG = "sublet:server", "sublet:node", "sublet:offer"
TOKEN_TAG, EXPIRES_TAG = "sublet:token", "sublet:expires-at"
ENDED = ("shutting-down", "terminated")  # no longer billed
INSIDE = "Client.InstanceInitiatedShutdown"  # StateReason, as EC2 documents it
STAMP = "%Y-%m-%dT%H:%M:%SZ"
WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")  # in StateTransitionReason


def user_data(node_id: str, token: str, config: AwsConfig, *, authority: str = "", poll_s: float = POLL_S) -> str:
    """The template with its blanks filled in; every value is quoted for the shell.

    If the controller is known by its authority, Sublet is fetched from it; else the image, or `install`, has it.
    """
    host, port = host_and_port(config.controller) if authority else ("", 0)
    values = {
        "TOKEN": token,
        "AUTHORITY": authority,
        "NODE": node_id,
        "ADDRESS": config.controller,
        "INSTALL": config.install,
        "RAY": config.ray,
        "PYTHON": config.python,
        "METADATA": config.metadata_url,
        "BOOT_S": f"{config.boot_s + INSTALL_S:.0f}",
        "LEASE_S": f"{config.lease_s + SLACK_S:.0f}",
        "POLL_S": f"{poll_s:g}",
        "CODE": own_code().digest if authority else "",
        "FETCH": FETCH,
    }
    quoted = {name: shlex.quote(value) for name, value in values.items()}
    quoted["PACKAGES"] = packages(config.install)
    more = ["--authority authority"] if authority else []
    quoted["FROM"] = shlex.join([host, str(port), CONTROLLER])
    more += ["--own-users"] if config.own_users else []
    quoted["MORE"] = " ".join([*more, *(f"--preload {shlex.quote(name)}" for name in config.preload)])
    text = BLANK.sub(lambda blank: quoted[blank[1]], _template())
    if len(text.encode()) > MOST_BYTES:
        raise InvalidValue("user data", f"{len(text.encode())} bytes", f"at most {MOST_BYTES}")
    return text


def packages(text: str) -> str:
    """Words for pip, as a shell would split them, each quoted."""
    try:
        return shlex.join(shlex.split(text))
    except ValueError as error:
        raise InvalidValue("install", text, f"words for pip ({error})") from None


@cache
def _template() -> str:
    return data.bundled("aws/user-data.sh").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance with our tags."""

    id: str
    region: str
    state: str
    server: str
    node_id: str
    offer_id: str
    token_tag: str
    kind: str
    launched_unix: float
    ended_unix: float | None = None  # where EC2 says when
    expires_unix: float | None = None
    home: str = ""  # whence it was renewed last; "" = by a version that did not say
    spot_request: str = ""  # by which EC2 knows when it took the instance
    state_reason: str = ""  # EC2's code for why it is in this state

    @property
    def alive(self) -> bool:
        """It may cost something."""
        return self.state not in ENDED

    @property
    def shut_itself_down(self) -> bool:
        """From inside: neither did spot take it nor did anybody end it by a call."""
        return not self.alive and self.state_reason == INSIDE


def token_tag(token: str) -> str:
    """The tag of an instance for the token that it was rented with: enough to know it by, too little to use."""
    return hashlib.sha256(f"tag {token}".encode()).hexdigest()[:32]


async def list_instances(calls: Calls, region: str, **tags: str) -> list[Instance]:
    """All instances with these tags (`server="..."`, `node="..."`), whatever their state."""
    filters = [{"Name": f"tag:sublet:{name}", "Values": [value]} for name, value in tags.items()]
    if not tags:
        filters = [{"Name": "tag-key", "Values": [SERVER_TAG]}]
    rows = await calls.pages(region, "describe_instances", "Reservations", Filters=filters)
    return [instance_from(row, region) for reservation in rows for row in reservation["Instances"]]


def instance_from(row: Mapping[str, Any], region: str) -> Instance:
    """One row of DescribeInstances."""
    tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags", ())}
    state = row["State"]["Name"]
    found = WHEN.search(row.get("StateTransitionReason") or "") if state in ENDED else None
    ended = None if found is None else datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
    return Instance(
        id=row["InstanceId"],
        region=region,
        state=state,
        server=tags.get(SERVER_TAG, ""),
        node_id=tags.get(NODE_TAG, ""),
        offer_id=tags.get(OFFER_TAG, ""),
        token_tag=tags.get(TOKEN_TAG, ""),
        kind=row.get("InstanceType", ""),
        launched_unix=row["LaunchTime"].timestamp(),
        ended_unix=ended,
        expires_unix=_unix_from(tags.get(EXPIRES_TAG, "").partition(" ")[0]),
        home=tags.get(EXPIRES_TAG, "").partition(" ")[2],
        spot_request=row.get("SpotInstanceRequestId") or "",
        state_reason=(row.get("StateReason") or {}).get("Code", ""),
    )


@lru_cache(maxsize=1024)  # every listing has the same ones
def _unix_from(stamp: str) -> float | None:
    try:
        return datetime.strptime(stamp, STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def stamp_from(unix: float) -> str:
    """As in the tag."""
    return datetime.fromtimestamp(unix, UTC).strftime(STAMP)


def expiry_tag(unix: float, home: str) -> str:
    """Until when an instance is wanted, and by which directory: in one tag, so that they are written as one."""
    return f"{stamp_from(unix)} {home}".strip()


def launch_request(
    record: InstanceRecord, offer: Offer, config: AwsConfig, *, server: str, zone_name: str, authority: str = ""
) -> dict[str, Any]:
    """RunInstances for one node: the same to the letter whenever it is asked again."""
    tags = {
        "Name": f"sublet {record.node_id}",
        SERVER_TAG: server,
        NODE_TAG: record.node_id,
        OFFER_TAG: record.offer_id,
        TOKEN_TAG: token_tag(record.token),
        EXPIRES_TAG: expiry_tag(record.expires_unix, record.home),
    }
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    request: dict[str, Any] = {
        "ImageId": config.image_in(record.region),
        "InstanceType": offer.instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": client_token(record.token, record.zone),
        "InstanceInitiatedShutdownBehavior": "terminate",  # what ends itself is no longer paid for
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "UserData": user_data(record.node_id, record.token, config, authority=authority),
        "TagSpecifications": [{"ResourceType": kind, "Tags": listed} for kind in ("instance", "volume")],
    }
    if offer.market is Market.SPOT:
        cap = offer.price if offer.cap is None else offer.cap
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        request["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"MaxPrice": f"{cap.usd_per_h:.6f}", **options},
        }
    if subnet := config.subnets.get(record.zone):
        request["SubnetId"] = subnet
    elif zone_name:
        request["Placement"] = {"AvailabilityZone": zone_name}
    if config.security_groups:
        request["SecurityGroupIds"] = list(config.security_groups)
    if config.instance_profile:
        request["IamInstanceProfile"] = {"Name": config.instance_profile}
    if config.key_name:
        request["KeyName"] = config.key_name
    return request
