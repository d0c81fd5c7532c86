"""`sublet replay`: a recorded history, step by step.

A journal of `simulate --log`, or the store of a controller (its state directory, or `log.sqlite` in it), is lived again
by a new kernel, which must give the same orders at every step. Records of another version of the kernel are only told:
it may have had other reasons. The history of a controller (`events -o json`, `history.json` of a report, or the
controller itself) is told again.
"""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document

if TYPE_CHECKING:
    from sublet.kernel.kernel import Kernel
    from sublet.runtime.archive import WholeLog
    from sublet.runtime.store import Store

__all__ = ["replay"]


STORE = "log.sqlite"  # of a controller, in its state directory
SQLITE = b"SQLite format 3\0"


def replay(
    log: Annotated[
        Path | None,
        typer.Argument(metavar="[LOG]", help="A journal or a history; without it, that of the running controller."),
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="ID", help="Only what concerns this job.")] = None,
    step: Annotated[bool, typer.Option("--step", help="Wait for Enter after each line.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the timeline of a state directory in a browser, until Ctrl-C.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Tell a recorded history again; a journal is checked order by order against a new kernel."""
    if serve:
        _show(log)
        return
    wants_document = opt.wants_document(output, json)
    tell = _Teller(job, pausing=step and sys.stdin.isatty(), quiet=wants_document)
    if log is None:
        from sublet.client import connect

        found = _told(connect().events(), tell, source="controller")
    else:
        found = _recorded(log, tell)
    if wants_document:
        print_document({"schema_version": 1, **found})
    else:
        if found.get("settings"):
            typer.echo(_run_with(found["settings"]))
        typer.echo(f"{found['events']:,} events over {found['span_s']:,.1f} s, {_how(found)}")


def _show(path: Path | None) -> None:
    """The page over what a controller that has ended left."""
    from sublet.cli.work.showing import show
    from sublet.errors import BadInput
    from sublet.runtime.store import Store

    place = path / STORE if path is not None and path.is_dir() else path
    if place is None or not place.is_file() or not _is_store(place):
        raise BadInput(path or "LOG", "is no state directory", hint="give the state directory of a run that has ended")
    store = Store(place)
    try:
        show(store, what=f"record of {place.parent.name}")
    finally:
        store.close()


def _run_with(settings: Mapping[str, Any]) -> str:
    """Settings that matter for the decisions."""
    markets = ", ".join(Path(name).name for name in settings["market"]) or "steady"
    who = f"provider {settings['provider']}, policy {settings['policy']}{' in a hurry' * settings['hurry']}"
    return f"run last with {who}, market {markets}, speed-up {settings['speedup']:g}"


def _how(found: Mapping[str, Any]) -> str:
    """Whether the orders were compared, and those of which events were not."""
    if found["verified"]:
        return "orders as recorded"
    if found.get("missing"):
        gone = f"the {found['missing']:,} before them were cut, and their archive is not there, or damaged"
        return f"{'orders as recorded' if found['compared'] else 'told, and not compared'}; {gone}"
    if "compared" not in found:
        return "told"
    other = "written by another version of the kernel, and are only told"
    if not found["compared"]:
        return other.removesuffix(", and are only told") + ": told, and not compared"
    before = found["events"] - found["compared"]
    return f"orders of the last {found['compared']:,} as recorded; the {before:,} before were {other}"


class _Teller:
    """Prints what concerns the job that was asked for."""

    def __init__(self, job: str | None, *, pausing: bool, quiet: bool) -> None:
        self.job, self.pausing, self.quiet = job, pausing, quiet

    def line(self, text: str, jobs: set[str]) -> None:
        if self.quiet or (self.job is not None and self.job not in jobs):
            return
        typer.echo(text)
        if self.pausing:
            sys.stdin.readline()


def _recorded(path: Path, tell: _Teller) -> dict[str, Any]:
    """Any kind of record."""
    if path.is_dir() and (path / STORE).is_file():
        path = path / STORE
    if _is_store(path):
        from sublet.runtime.store import Store

        store = Store(path)
        try:
            return {**_kept(path, store, tell), "settings": _settings_of(store)}
        finally:
            store.close()
    text = _text(path)
    history = _history(path, text)
    if history is not None:
        return _told(history, tell, source=str(path))
    header, *lines = text.splitlines() or [""]
    if _of_another_version(header):
        return _only_told(path, lines, tell)
    return _lived(path, [header, *lines], tell)


def _settings_of(store: Store) -> dict[str, Any] | None:
    """Settings of its last controller; None in the log of a version that did not note it."""
    from dataclasses import asdict

    from sublet.runtime.settings import settings_from_json
    from sublet.runtime.store import MetaKey

    text = store.get(MetaKey.SETTINGS)
    return None if text is None else asdict(settings_from_json(text, source=store.path))


def _is_store(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


# ---------------------------------------------------------------------- the history of a controller


def _history(path: Path, text: str) -> list[dict[str, Any]] | None:
    """The events in it; None if it is a journal, line by line."""
    from sublet.errors import BadInput

    try:
        facts = jsonlib.loads(text)
    except ValueError:
        return None
    if isinstance(facts, dict) and "journal" in facts:
        return None  # one of a single line
    try:
        return [{**event, "at_s": float(event["at_s"]), "text": str(event["text"])} for event in facts["events"]]
    except (KeyError, TypeError, ValueError) as error:
        hint = "give a file of 'simulate --log' or of 'events -o json'"
        raise BadInput(path, f"no history of a controller ({error!r})", hint=hint) from None


def _told(events: Sequence[Mapping[str, Any]], tell: _Teller, *, source: str) -> dict[str, Any]:
    for event in events:
        who = str(event.get("job_id") or event.get("node_id") or "")
        tell.line(f"{event['at_s']:>12,.1f} s  {who + ': ' if who else ''}{event['text']}", {who})
    span_s = events[-1]["at_s"] - events[0]["at_s"] if events else 0.0
    return {"source": source, "events": len(events), "span_s": span_s, "verified": False}


# ---------------------------------------------------------------------- the journal of a kernel


def _kept(path: Path, store: Store, tell: _Teller) -> dict[str, Any]:
    """A controller's own log: compared from where this version of the kernel began."""
    from sublet.kernel.kernel import KERNEL_VERSION
    from sublet.runtime.archive import WholeLog
    from sublet.runtime.store import MetaKey

    log, header = WholeLog(store), store.get(MetaKey.HEADER) or ""
    if not log.is_whole:
        return {**_from_the_cut(path, store, log, tell), "missing": log.cut}
    if not _of_another_version(header):
        return _lived(path, chain([header], log.lines()), tell)
    first = store.first_snapshot(KERNEL_VERSION)
    if first is None:
        return _only_told(path, log.lines(), tell)
    seq, state = first
    told = _only_told(path, log.lines(until=seq), tell)
    lived = _lived(path, log.lines(after=seq), tell, _kernel_of(state))
    events, compared = told["events"] + lived["events"], lived["events"]
    span_s = (lived["last_s"] or told["last_s"] or 0.0) - (told["first_s"] or 0.0)
    facts = {**lived, "events": events, "span_s": span_s, "compared": compared}
    return {**facts, "first_s": told["first_s"], "verified": False}


def _from_the_cut(path: Path, store: Store, log: WholeLog, tell: _Teller) -> dict[str, Any]:
    """The older part is gone: from the snapshot with which the log begins, if it is of this version."""
    from sublet.kernel.kernel import KERNEL_VERSION

    states = [state for seq, state in store.snapshots() if seq == log.cut]
    if not states or jsonlib.loads(states[0])["kernel"]["kernel"] != KERNEL_VERSION:
        return _only_told(path, log.lines(), tell)
    lived = _lived(path, log.lines(), tell, _kernel_of(states[0]))
    return {**lived, "compared": lived["events"], "verified": False}


def _kernel_of(state: str) -> Kernel:
    from sublet.kernel.snapshots import kernel_from_snapshot

    return kernel_from_snapshot(jsonlib.loads(state)["kernel"])


def _of_another_version(header: str) -> bool:
    from sublet.kernel.journal import version_of
    from sublet.kernel.kernel import KERNEL_VERSION

    try:
        is_journal = {"journal", "offers"} <= jsonlib.loads(header).keys()
    except (ValueError, TypeError, AttributeError):
        return False  # a replay will say what it is
    return is_journal and version_of(header) != KERNEL_VERSION


def _only_told(path: Path, recorded: Iterable[str], tell: _Teller) -> dict[str, Any]:
    from sublet.errors import BadInput

    times: list[float] = []
    for number, line in enumerate(recorded, start=2):
        try:
            facts = jsonlib.loads(line)
            times.append(float(facts["event"]["at_s"]))
            tell.line(*_step(facts))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(path, f"not a line of a journal ({error!r})", line=number) from error
    return {**_span(path, times), "compared": 0, "verified": False}


def _lived(path: Path, recorded: Iterable[str], tell: _Teller, kernel: Kernel | None = None) -> dict[str, Any]:
    """From the first line on, or from where `kernel` is."""
    from sublet.kernel.journal import open_journal, relive

    times: list[float] = []
    living, steps = open_journal(recorded, source=str(path), kernel=kernel)
    for step in relive(steps, living.handle):  # told when the kernel has agreed with it
        times.append(step.event.at_s)
        tell.line(*_step(step.facts))
    return {**_span(path, times), "verified": True}


def _span(path: Path, times: list[float]) -> dict[str, Any]:
    first_s, last_s = (times[0], times[-1]) if times else (None, None)
    span_s = times[-1] - times[0] if times else 0.0
    return {"source": str(path), "events": len(times), "span_s": span_s, "first_s": first_s, "last_s": last_s}


def _step(facts: Mapping[str, Any]) -> tuple[str, set[str]]:
    """One event and the orders that followed, in a line; and the jobs in it."""
    event, orders = facts["event"], facts["actions"]
    jobs = {str(each["job_id"]) for each in (event, *orders) if each.get("job_id")}
    if isinstance(event.get("job"), dict):
        jobs.add(str(event["job"]["id"]))
    said = ", ".join(_named(order) for order in orders if order["type"] not in ("MakePlan", "SetTimer"))
    return f"{event['at_s']:>12,.1f} s  {_named(event)}" + (f" -> {said}" if said else ""), jobs


def _named(facts: Mapping[str, Any]) -> str:
    job = facts.get("job")
    subject = facts.get("job_id") or (job["id"] if isinstance(job, dict) else "") or facts.get("node_id") or ""
    shape = facts.get("shape")
    wide = f" on {shape['gpus']} x {shape['pool']}" if isinstance(shape, dict) else ""
    text = f" '{facts['text']}'" if facts.get("text") else ""
    return f"{facts['type']} {subject}{wide}{text}".rstrip()


def _text(path: Path) -> str:
    from sublet.errors import BadInput

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise BadInput(path, f"cannot be read ({why})", hint="give a file of 'simulate --log'") from None
