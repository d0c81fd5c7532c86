"""The words of every command and mention of README, tutorial and guides: verbs, options, targets and extras exist."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tomllib

import pytest
from typer.main import get_command

from sublet.cli.main import assembled
from tests.rigs.guide_commands import PAGES, ROOT, Command, commands_of

COMMANDS = {page: commands_of(page.read_text(encoding="utf-8")) for page in PAGES}
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*|USD\S*")  # in a sentence: any value


@functools.cache
def verbs():
    return get_command(assembled())


def wrong_in(words, *, mention=False):
    """What the command line says of these words; "" if nothing. A mention need not have all that its verb needs."""
    verb, parent, rest = verbs(), None, list(words)
    try:
        while rest:
            with verb.make_context(verb.name, rest, parent, obj="") as context:
                if not hasattr(verb, "resolve_command"):
                    return ""
                rest = [*context._protected_args, *context.args]
                if rest:
                    _, verb, rest = verb.resolve_command(context, rest)
                parent = context
        if not mention and not hasattr(verb, "resolve_command"):
            verb.make_context(verb.name, [], parent, obj="").close()
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "UsageError" not in kinds:  # typer has a copy of click of its own, and its errors are not click's
            raise
        said = error.format_message()
        if mention and (said.startswith("Missing") or "requires an argument" in said):
            return ""
        if mention and "BadParameter" in kinds and PLACEHOLDER.search(" ".join(words)):
            return ""
        return said
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_line_knows_every_word_that_a_page_types(page):
    ours = [command for command in COMMANDS[page] if command.program == "sublet"]
    wrong = {
        f"{page.name}:{command.line}: {command.plain}": said
        for command in ours
        if (said := wrong_in(command.words[1:], mention=command.mention))
    }
    assert wrong == {}


def typed(program: str) -> list[Command]:
    return [command for commands in COMMANDS.values() for command in commands if command.program == program]


def test_extras_that_a_page_installs_are_those_of_the_package():
    files = (ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml")
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    extras = {extra for project in projects for extra in project["optional-dependencies"]}
    named = {
        name
        for command in typed("pip")
        for part in re.findall(r"\[([\w,-]+)\]", command.plain)
        for name in part.split(",")
    }
    assert {"server", "torch"} <= named <= extras


def test_targets_that_a_page_makes_are_those_of_the_makefile():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {word for command in typed("make") for word in command.words[1:]} <= set(targets)


@pytest.mark.parametrize("command", [c for c in typed("python") if "-m" in c.words], ids=lambda command: command.plain)
def test_a_module_that_a_page_runs_has_these_options(command):
    options = {word for word in command.words[3:] if word.startswith("--")}
    module = command.words[command.words.index("-m") + 1]
    told = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=300, check=True
    )
    assert options <= set(re.findall(r"--[\w-]+", told.stdout))


@pytest.mark.parametrize(
    "words",
    [
        "simulte pollux-1",
        "ps --wtach",
        "budget sett --org 5",
        "up --notice-s soon",
        "submit --workers 1..8 -- python train.py",
    ],
)
def test_a_word_that_does_not_exist_is_found(words):
    assert wrong_in(words.split())
