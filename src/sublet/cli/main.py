"""`sublet`: the verbs, and one place where every error becomes a line on standard error and an exit code."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sublet import __version__
from sublet.cli.verbs.advise import advise
from sublet.cli.verbs.budget import budget_app
from sublet.cli.verbs.cancel import cancel
from sublet.cli.verbs.check import check
from sublet.cli.verbs.compare import compare
from sublet.cli.verbs.convert import convert
from sublet.cli.verbs.cost import cost
from sublet.cli.verbs.dashboard import dashboard
from sublet.cli.verbs.demo import demo
from sublet.cli.verbs.down import down
from sublet.cli.verbs.events import events
from sublet.cli.verbs.explain import explain
from sublet.cli.verbs.gc import gc
from sublet.cli.verbs.inspect import inspect
from sublet.cli.verbs.logs import logs
from sublet.cli.verbs.move import move
from sublet.cli.verbs.offers import offers
from sublet.cli.verbs.pause import pause
from sublet.cli.verbs.plan import plan
from sublet.cli.verbs.policies import policies
from sublet.cli.verbs.profile import profile
from sublet.cli.verbs.profiles import profiles
from sublet.cli.verbs.ps import ps
from sublet.cli.verbs.rehearse import rehearse
from sublet.cli.verbs.replay import replay
from sublet.cli.verbs.resume import resume
from sublet.cli.verbs.run import run as run_job
from sublet.cli.verbs.scale import scale
from sublet.cli.verbs.schema import schema
from sublet.cli.verbs.simulate import simulate
from sublet.cli.verbs.submit import submit
from sublet.cli.verbs.token import token_app
from sublet.cli.verbs.traces import traces
from sublet.cli.verbs.up import up
from sublet.cli.verbs.what_if import what_if
from sublet.cli.verbs.workloads import workloads
from sublet.errors import SubletError

INTERRUPTED = 130
PROGRAM = "sublet"

EXIT_CODES = (
    "Exit codes: 0 done, 1 a file is missing or Sublet is at fault, 2 wrong command line or input, 74 the controller "
    "cannot write its store, 75 no controller, 100 to 103 the job failed, goes on, does not exist, was cancelled, "
    "110 to 112 money, time or size do not suffice. "
    "More in docs/reference/command-line.md."
)


class Verbs(TyperGroup):
    """The verbs under headings: thirty in one list are none that anybody reads."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of verbs in `--help`."""
        by_heading: dict[str, list[tuple[str, Any]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                by_heading.setdefault(heading if isinstance(heading, str) else "More", []).append((name, command))
        limit = formatter.width - 6 - max(len(name) for verbs in by_heading.values() for name, _ in verbs)
        for heading, verbs in by_heading.items():
            with formatter.section(heading):
                formatter.write_dl([(name, command.get_short_help_str(limit)) for name, command in verbs])


SEEING = "See what they do, and what they cost"
VERBS: dict[str, tuple[tuple[str, Callable[..., None]], ...]] = {
    "Run jobs": (
        *(("demo", demo), ("up", up), ("down", down), ("move", move), ("submit", submit), ("run", run_job)),
        *(("cancel", cancel), ("pause", pause), ("resume", resume), ("scale", scale), ("schema", schema)),
    ),
    "Make a script elastic": (("inspect", inspect), ("convert", convert), ("rehearse", rehearse)),
    SEEING: (
        ("dashboard", dashboard),
        *(("ps", ps), ("logs", logs), ("events", events), ("explain", explain), ("cost", cost), ("replay", replay)),
    ),
    "Ask before you spend": (
        *(("simulate", simulate), ("compare", compare), ("plan", plan), ("advise", advise)),
        *(("profile", profile), ("what-if", what_if)),
    ),
    "What is there": (
        *(("workloads", workloads), ("profiles", profiles), ("offers", offers), ("traces", traces)),
        ("policies", policies),
    ),
    "Keep things in order": (("check", check), ("gc", gc)),
}
GROUPS = {
    "budget": (budget_app, SEEING),
    "token": (token_app, "Keep things in order"),
}
OF_THE_LAB = {  # verbs of sublet-lab, found by entry points: heading, and first sentence
    "spot": ("Ask before you spend", "With sublet-lab: one large job on a record of a spot market, policy by policy."),
    "forecast": ("Ask before you spend", "With sublet-lab: how far every forecaster is off on a trace."),
    "study": ("Ask before you spend", "With sublet-lab: reproduce a published result, and check every claim anew."),
    "data": ("What is there", "With sublet-lab: what the studies read that does not ship, and how to get it."),
}
ALIASES = ("status", "queue")  # what others call ps


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # its callback has spoken
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def assembled(wanted: str | None = None) -> typer.Typer:
    """All verbs: `wanted` as it is, the others by name and first sentence alone; None = all as they are."""
    made = typer.Typer(
        name=PROGRAM,
        cls=Verbs,
        help="Rent GPUs from a cloud and sublet them to training jobs, within a budget.",
        epilog=EXIT_CODES,
        rich_markup_mode=None,  # rich would double the time that --help takes
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for heading, verbs in VERBS.items():
        for name, verb in verbs:
            made.command(name, rich_help_panel=heading)(verb if wanted in (None, name) else _named(verb.__doc__))
    for alias in ALIASES:
        made.command(alias, hidden=True)(ps if wanted in (None, alias) else _named(ps.__doc__))
    for name, (group, heading) in GROUPS.items():
        if wanted in (None, name):
            made.add_typer(group, name=name, rich_help_panel=heading)
        else:
            made.command(name, rich_help_panel=heading)(_named(group.info.help))
    for name, (heading, text) in OF_THE_LAB.items():
        verb = _of_the_lab(name, wanted)
        if verb is None:
            made.command(name, rich_help_panel=heading)(_named(text))
        elif isinstance(verb, typer.Typer):
            made.add_typer(verb, name=name, rich_help_panel=heading)
        else:
            made.command(name, rich_help_panel=heading)(verb)
    made.callback(invoke_without_command=True)(_root)
    return made


def _of_the_lab(name: str, wanted: str | None) -> Any:
    """A verb of sublet-lab, if it is wanted; an error if it is that one and not there."""
    if wanted not in (None, name):
        return None
    from sublet import plugins

    if wanted is None and name not in plugins.names("sublet.verbs"):
        return None
    return plugins.load_from_lab("sublet.verbs", name, name)


def _named(text: str | None) -> Callable[[], None]:
    """A verb of which only this is asked."""

    def verb() -> None:
        raise AssertionError("it is not the one that was typed")

    verb.__doc__ = text
    return verb


def main() -> None:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; the exit code. A traceback is shown only on request."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a name that this terminal cannot show must not end the program
    try:
        code = _command(_verb_of(arguments)).main(
            args=list(arguments),
            prog_name=PROGRAM,
            standalone_mode=False,
            obj=shlex.join([PROGRAM, *arguments]),
        )
        sys.stdout.flush()
    except SubletError as error:
        return _fail(str(error), error.exit_code, error)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last resort is what this function is for
        return _report_fault(error, arguments)
    if code == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


@cache
def _command(wanted: str | None) -> Any:
    """The verb with its options, which typer reads off its function: of all of them that takes longer than most do."""
    return get_command(assembled(wanted))


def _verb_of(arguments: Sequence[str]) -> str | None:
    """The first word typed; "" if there is none, None where a shell asks for completions."""
    if f"_{PROGRAM.upper()}_COMPLETE" in os.environ:
        return None
    return next((word for word in arguments if not word.startswith("-")), "")


def _report_fault(error: Exception, arguments: Sequence[str]) -> int:
    """A usage error that typer found, or a fault of ours."""
    message = getattr(error, "format_message", None)
    if message is not None:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else PROGRAM
        text = message().rstrip() + _quote_typed(getattr(error, "param", None), arguments)
        return _fail(f"{text}\n  next: {path} --help", int(getattr(error, "exit_code", 2)))
    text = f"internal error: {type(error).__name__}: {error}"
    advice = "please report it; rerun with SUBLET_DEBUG=1 for the traceback"
    return _fail(f"{text}\n  next: {advice}", 1, error)


def _quote_typed(parameter: object, arguments: Sequence[str]) -> str:
    """The value typed for the option that typer complains about: it names the option, not always the value."""
    names = getattr(parameter, "opts", ())
    values = [value for name, value in pairwise(arguments) if name in names]
    return f" (it was {', '.join(map(repr, values))})" if values else ""


def _fail(text: str, code: int, error: Exception | None = None) -> int:
    if error is not None and os.environ.get("SUBLET_DEBUG"):
        traceback.print_exception(error)
    typer.echo(text if text.startswith("internal error") else f"error: {text}", err=True)
    return code
