"""`sublet gc`: find rented resources that are no longer wanted, and give them back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sublet.cli.options import Json, Output, OutputOption, wants_document
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table

if TYPE_CHECKING:
    from sublet.runtime.providers.aws.calls import Calls
    from sublet.runtime.providers.aws.instances import Instance, InstanceRecord

__all__ = ["gc"]


CONFIRMATIONS = 60  # looks, a second apart, for EC2 to say that an instance is shutting down


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Something that is paid for, or runs, and whether it is wanted."""

    what: str
    where: str
    node_id: str
    since: str
    why: str
    orphan: bool
    thing: Any = None


def gc(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be ended.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    region: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Look there on AWS, too, also without aws.toml; may be repeated."),
    ] = None,
    output: OutputOption = Output.TABLE,
    json: Json = False,
) -> None:
    """End instances that carry our tag and that no live controller knows. Nothing without our tag is ever touched."""
    from sublet.api.state import StateDir
    from sublet.runtime.settings import default_state_dir

    folder = default_state_dir()
    live = StateDir(folder).in_use
    left = [*_local(folder, live=live), *_aws(folder, region or [], live=live)]
    orphans = [each for each in left if each.orphan]
    as_json = wants_document(output, json)
    if not as_json:
        _show(left)
    ended: list[Left] = []
    if orphans and not dry_run and (yes or (not as_json and typer.confirm(f"End these {len(orphans)}?"))):
        for each in orphans:
            _end(each, folder)
            ended.append(each)
    if as_json:
        rows = [
            {"what": e.what, "where": e.where, "node": e.node_id, "since": e.since, "why": e.why, "orphan": e.orphan}
            for e in left
        ]
        facts = {"found": rows, "ended": [each.what for each in ended], "dry_run": dry_run}
        print_document({"schema_version": 1, "command": command_line(context), **facts})
    elif orphans:
        print_notes([f"{len(ended)} ended" if ended else "nothing was ended; -y ends them without a question"])


def _show(left: list[Left]) -> None:
    if not left:
        print_notes(["nothing of ours is left anywhere that was looked at"])
        return
    rows = [[e.what, e.where, e.node_id, e.since, "orphan" if e.orphan else "kept", e.why] for e in left]
    print_table(["what", "where", "node", "since", "", "why"], rows, words=(0, 1, 2, 3, 4, 5))


# ---------------------------------------------------------------------- this machine


def _local(folder: Path, *, live: bool) -> list[Left]:
    from sublet.runtime.providers.local.records import Records

    if not (folder / "nodes").is_dir():
        return []
    records = Records(folder / "nodes")
    found = []
    for written in records.read():
        record = records.with_process(written)
        if members := records.members(record):
            elsewhere = records.is_anothers(record)
            why = "its controller runs" if live else "no controller runs"
            if elsewhere:
                why = "it was started from another state directory: this one is a copy"
            text = f"{len(members)} processes of {record.pid}"
            found.append(
                Left(
                    what=text,
                    where="this machine",
                    node_id=record.node_id,
                    since="",
                    why=why,
                    orphan=not live and not elsewhere,
                    thing=record,
                )
            )
    return found


# ---------------------------------------------------------------------- AWS


def _aws(folder: Path, regions: list[str], *, live: bool) -> list[Left]:
    """Instances in the regions of aws.toml and earlier rents; and in `regions`, also without the directory."""
    import asyncio

    from sublet.cli.work.rights import server_id
    from sublet.runtime.providers.aws.config import config_path, read_config
    from sublet.runtime.providers.aws.instances import InstanceRecord, InstanceRecords

    path, held = config_path(folder), dict[str, InstanceRecord]()
    if path.exists():
        records = InstanceRecords(folder / "aws")
        regions, held = [*regions, *records.regions(read_config(path).regions)], records.read()
    if not regions:
        return []
    found, server = asyncio.run(_instances(_endpoint(folder), set(regions))), server_id(folder)
    return [
        _left(each, wanted, orphan=False)
        if (wanted := _why_an_anchor_stays(each, server, folder))
        else _judge(each, _reason_not_ours(each, held.get(each.node_id), folder), ours=each.server == server, live=live)
        for each in found
    ]


def _endpoint(folder: Path) -> str:
    from sublet.runtime.providers.aws.config import config_path, read_config

    path = config_path(folder)
    return read_config(path).endpoint_url if path.exists() else ""


async def _instances(endpoint_url: str, regions: set[str]) -> list[Instance]:
    from sublet.runtime.providers.aws.instances import list_instances

    calls = _calls(endpoint_url)
    listed = [await list_instances(calls, region) for region in sorted(regions)]
    return [instance for each in listed for instance in each if instance.alive and instance.server]


def _calls(endpoint_url: str) -> Calls:
    from sublet.runtime.providers.aws.calls import Calls, client_maker

    return Calls(client_maker(endpoint_url))


def _judge(instance: Instance, why_not: str, *, ours: bool, live: bool) -> Left:
    """Ours are orphans when our controller does not run and they were not renewed since; any when none was renewed."""
    import time

    expired = instance.expires_unix is not None and instance.expires_unix < time.time()
    if ours and live:
        orphan, why = False, "our controller runs, and sweeps by itself"
    elif ours and not why_not:
        orphan, why = True, "our controller does not run"
    else:
        whose = why_not if ours else f"of controller {instance.server}"  # that of a controller host: anchor-...
        orphan, why = expired, f"{whose}, not renewed in time" if expired else f"{whose}, which renewed it"
    return _left(instance, why, orphan=orphan)


def _left(instance: Instance, why: str, *, orphan: bool) -> Left:
    from sublet.runtime.providers.aws.instances import stamp_from

    since = stamp_from(instance.launched_unix)
    where = f"{instance.region} {instance.kind}"
    return Left(
        what=instance.id, where=where, node_id=instance.node_id, since=since, why=why, orphan=orphan, thing=instance
    )


def _why_an_anchor_stays(instance: Instance, server: str | None, folder: Path) -> str:
    """Empty where it does not, or is none: its disk has the only copy of a state, and one that is off cannot renew."""
    from sublet.errors import BadInput
    from sublet.runtime.controller_host.instance import anchor_server, is_anchor
    from sublet.runtime.controller_host.record import read_record

    if not is_anchor(instance.server):
        return ""
    if server is not None and instance.server == anchor_server(server):
        try:
            record = read_record(folder)
        except BadInput:
            return "a controller host of this directory, whose record cannot be read"
        if record is not None and record.instance in ("", instance.id):
            return "the controller host of this directory: 'sublet down' ends it"
    if instance.state in ("stopping", "stopped"):
        return "a controller host that is off, and costs its disk: end it in the EC2 console"
    return ""


def _reason_not_ours(instance: Instance, record: InstanceRecord | None, folder: Path) -> str:
    """This directory may be a copy: then the one that rents goes on elsewhere, and renews what it holds."""
    from sublet.runtime.private import home_of

    if instance.home not in ("", home_of(folder)):
        return "of the same controller in another directory or on another machine"
    if record is None or (instance.expires_unix or 0.0) > record.known_unix:
        return "of a controller of which this directory is an old copy"
    return ""


def _end(left: Left, folder: Path) -> None:
    import asyncio

    from sublet.errors import NoAnswer
    from sublet.runtime.agent import processes
    from sublet.runtime.providers.local.records import NodeRecord, Records

    if isinstance(left.thing, NodeRecord):
        if not processes.kill_instance(left.thing.pid, left.thing.start):
            raise NoAnswer(f"the end of {left.what}", "some of its processes do not die")
        Records(folder / "nodes").remove(left.node_id)
        return
    asyncio.run(_terminate(_endpoint(folder), left.thing))


async def _terminate(endpoint_url: str, instance: Instance) -> None:
    """Returns when EC2 confirms it; not if it was renewed since it was looked at."""
    import asyncio

    from sublet.errors import NoAnswer, Refused
    from sublet.runtime.providers.aws.instances import list_instances

    calls = _calls(endpoint_url)
    now = [
        each for each in await list_instances(calls, instance.region, server=instance.server) if each.id == instance.id
    ]
    if any((each.expires_unix, each.home) != (instance.expires_unix, instance.home) for each in now):
        raise Refused(f"{instance.id} was renewed while you looked: nothing is done to it\n  next: sublet gc")
    await calls.call(instance.region, "terminate_instances", InstanceIds=[instance.id])
    for _ in range(CONFIRMATIONS):
        listed = await list_instances(calls, instance.region, server=instance.server)
        if not any(each.alive for each in listed if each.id == instance.id):
            return
        await asyncio.sleep(1.0)
    raise NoAnswer(f"the end of {instance.id}", "EC2 took the order and still shows it running")
