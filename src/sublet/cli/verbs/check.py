"""`sublet check`: whether what Sublet needs is there, before money depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli.options import Json, Output, OutputOption, wants_document
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table
from sublet.errors import InvalidValue

if TYPE_CHECKING:
    from sublet.runtime.providers.aws.check import Finding

__all__ = ["check"]


TRIAL_S = 1800.0  # wall: a GPU's image boots, and downloads torch
OLD_DAYS = 120  # as market.hygiene: spot prices change every week
MARKS = {True: "ok", False: "FAILED", None: "-"}


def check(
    context: typer.Context,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="Insist on this one, aws or ssh; else what is set up.")
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own machines, as `sublet up --hosts`. Means --provider ssh."),
    ] = None,
    iam: Annotated[
        bool, typer.Option("--iam", help="Print the narrowest IAM policy for aws.toml and this state directory.")
    ] = False,
    for_real: Annotated[
        bool,
        typer.Option("--for-real", help="Rent one node, train on it for a moment and give it back: some cents."),
    ] = False,
    purse: Annotated[str, typer.Option(metavar="USD", help="What --for-real may cost at most.")] = "1",
    output: OutputOption = Output.TABLE,
    json: Json = False,
) -> None:
    """Look at credentials, rights, quotas, the age of prices and what is installed; exit code 1 if something fails."""
    if hosts is not None and provider not in (None, "ssh"):
        raise InvalidValue("--hosts", str(hosts), f"left out beside --provider {provider}")
    provider = "ssh" if hosts is not None else provider
    if iam:
        import json as jsonlib

        from sublet.cli.work.rights import narrow_policy_of
        from sublet.runtime.settings import default_state_dir

        typer.echo(jsonlib.dumps(narrow_policy_of(default_state_dir()), indent=2))  # for `aws iam put-role-policy`
        return
    if for_real:
        _try_a_node(context, provider, hosts, purse, document=wants_document(output, json))
        return
    findings = [
        *_check_prices(),
        *_check_packages(),
        *_check_aws(insist=provider == "aws"),
        *_check_ssh(insist=provider == "ssh", hosts=hosts),
    ]
    ok = all(finding.ok is not False for finding in findings)
    if wants_document(output, json):
        rows = [{"name": f.name, "ok": f.ok, "text": f.text, "hint": f.hint} for f in findings]
        print_document({"schema_version": 1, "command": command_line(context), "ok": ok, "checks": rows})
    else:
        print_table(["check", "", "found"], [[f.name, MARKS[f.ok], f.text] for f in findings], words=(0, 1, 2))
        print_notes([f"{f.name}: {f.hint}" for f in findings if f.hint])
    if not ok:
        raise typer.Exit(1)


def _try_a_node(
    context: typer.Context, provider: str | None, hosts: Path | None, purse: str, *, document: bool
) -> None:
    """As `sublet up` would begin, with a budget and a folder of its own."""
    import asyncio
    from dataclasses import asdict, replace

    from sublet import plugins
    from sublet.api.state import StateDir
    from sublet.cli.parse.values import parse_money
    from sublet.cli.work import controller_process
    from sublet.runtime import last_run
    from sublet.runtime.preflight import Check, try_a_node
    from sublet.runtime.settings import Settings, default_state_dir

    folder = default_state_dir()
    if folder.is_dir():
        controller_process.refuse_second(StateDir(folder))  # its agents come to the same port
    settings = last_run.last_settings(folder) or Settings(state_dir=str(folder))
    if provider is not None:
        engine = provider if provider in plugins.names("sublet.engines") else "local"
        settings = replace(settings, provider=provider, engine=engine)
    if hosts is not None:
        settings = replace(settings, hosts=str(hosts.absolute()))
    steps: list[Check] = []

    async def tried() -> None:
        trial = try_a_node(settings, purse_usd=parse_money("--purse", purse).usd, most_s=TRIAL_S)
        async for step in trial:
            steps.append(step)
            typer.echo(f"{step.name:<12} {MARKS[step.ok]:<6} {step.took_s:6.1f} s  {step.text}", err=document)

    asyncio.run(tried())
    ok = all(step.ok for step in steps)
    if document:
        facts = {"command": command_line(context), "ok": ok, "steps": [asdict(step) for step in steps]}
        print_document({"schema_version": 1, **facts})
    if not ok:
        raise typer.Exit(1)


def _check_prices() -> Iterator[Finding]:
    from sublet.market.catalogue import load_catalogue
    from sublet.runtime.providers.aws.check import Finding

    catalogue = load_catalogue()
    newest = max(date.fromisoformat(listing.as_of) for listing in catalogue.listings)
    days = (datetime.now(UTC).date() - newest).days
    hint = "" if days <= OLD_DAYS else "a newer release has newer prices; with AWS, spot prices are asked for live"
    yield Finding(name="prices", ok=days <= OLD_DAYS or None, text=f"{newest}, {days} days old", hint=hint)


def _check_packages() -> Iterator[Finding]:
    from importlib import metadata

    from sublet.runtime.providers.aws.check import Finding

    extras = {"torch": "torch", "ray": "ray", "boto3": "aws", "obstore": "store", "fastapi": "server"}
    for package, extra in extras.items():
        try:
            yield Finding(name=package, ok=True, text=metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(
                name=package, ok=None, text=f"not installed: pip install '.[{extra}]' in your clone of Sublet"
            )


def _check_aws(*, insist: bool) -> Iterator[Finding]:
    from sublet.cli.work.rights import server_id
    from sublet.errors import SubletError
    from sublet.market.catalogue import load_catalogue
    from sublet.runtime.providers.aws.calls import client_maker
    from sublet.runtime.providers.aws.check import Finding, aws_findings
    from sublet.runtime.providers.aws.config import config_path, read_config
    from sublet.runtime.providers.aws.offers import offers_from
    from sublet.runtime.settings import default_state_dir

    path = config_path(default_state_dir())
    if not insist and not path.exists():
        yield Finding(name="aws", ok=None, text=f"not set up: there is no {path}")
        return
    try:
        make = client_maker()
        config = read_config(path)
        offers = offers_from(config, load_catalogue())
    except SubletError as error:
        text, _, hint = str(error).partition("\n  next: ")
        yield Finding(name="aws", ok=False, text=text, hint=hint)
        return
    yield Finding(name="aws", ok=True, text=f"{path}: {len(offers)} offers")
    make = client_maker(config.endpoint_url) if config.endpoint_url else make
    yield from aws_findings(make, config, offers, datetime.now(UTC), server=server_id(default_state_dir()) or "check")


def _check_ssh(*, insist: bool, hosts: Path | None) -> Iterator[Finding]:
    """Every machine is tried, from the way there to the packages that an agent needs."""
    from sublet.errors import SubletError
    from sublet.runtime.providers.aws.check import Finding
    from sublet.runtime.providers.ssh.build import look_at
    from sublet.runtime.providers.ssh.config import config_path, read_config
    from sublet.runtime.providers.ssh.hostline import Way, import_asyncssh
    from sublet.runtime.settings import default_state_dir

    path = hosts or config_path(default_state_dir(), _named_hosts())
    if not insist and not path.exists():
        return
    try:
        config = read_config(path)
        import_asyncssh()
    except SubletError as error:
        text, _, hint = str(error).partition("\n  next: ")
        yield Finding(name="ssh", ok=False, text=text, hint=hint)
        return
    found = look_at(config.hosts, Way(server="check", python=config.python, preload=(), back=None))
    for name, facts in found.items():
        if isinstance(facts, str):
            yield Finding(name=f"ssh {name}", ok=False, text=facts)
            continue
        what = ", ".join(facts["gpus"]) or f"no GPU, {facts['cpus']} CPUs"
        what += f"; containers: {facts.get('containers') or facts.get('no_containers') or 'not known'}"
        lacks = ", ".join(facts["lacks"])
        hint = f"install it there for {config.python}: {lacks}" if lacks else ""
        yield Finding(name=f"ssh {name}", ok=not lacks, text=f"{what}; without {lacks}" if lacks else what, hint=hint)


def _named_hosts() -> str:
    """The file that `sublet up --hosts` named last."""
    from sublet.runtime import last_run
    from sublet.runtime.settings import default_state_dir

    before = last_run.last_settings(default_state_dir())
    return "" if before is None else before.hosts
