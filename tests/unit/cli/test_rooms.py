"""Each thing of the command line has one room: verbs, parsing, work, printing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.main import get_command

from sublet.cli.main import OF_THE_LAB, assembled

SOURCE = Path(__file__).parents[3] / "src" / "sublet"
CLI = SOURCE / "cli"
VERBS = sorted(path.stem for path in (CLI / "verbs").glob("*.py") if path.stem != "__init__")
ALIASES = {"status", "queue"}  # of ps
GROUPS = {"budget", "token"}  # with verbs of their own


def imported(path):
    """Every module of ours that a file imports, inside functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_there_is_one_file_for_every_verb_and_none_beside():
    ours = set(get_command(assembled()).commands) - ALIASES - set(OF_THE_LAB)
    assert ours == {verb.replace("_", "-") for verb in VERBS}


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_of_a_verb_gives_away_nothing_but_the_verb(verb):
    tree = ast.parse((CLI / "verbs" / f"{verb}.py").read_text(encoding="utf-8"))
    (names,) = [
        [name.value for name in node.value.elts]
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    ]
    assert names == [f"{verb}_app" if verb in GROUPS else verb]


@pytest.mark.parametrize(
    ("room", "below"),
    [("parse", ()), ("print", ()), ("work", ("parse", "print")), ("verbs", ("parse", "print", "work"))],
)
def test_rooms_call_one_another_in_one_direction(room, below):
    others = {"parse", "print", "work", "verbs"} - {room, *below}
    found = {module for path in (CLI / room).glob("*.py") for module in imported(path)}
    assert [module for module in found if module.startswith(tuple(f"sublet.cli.{other}" for other in others))] == []


def test_how_money_and_durations_are_written_is_known_in_one_place():
    own = re.compile(r"""removeprefix\(["'](USD|\$)|\[smhd\]|\[dhms\]""")
    readers = (path for room in ("cli", "runtime", "api") for path in (SOURCE / room).rglob("*.py"))
    users = [path.relative_to(SOURCE).as_posix() for path in readers if own.search(path.read_text(encoding="utf-8"))]
    assert users == ["runtime/jobs/values.py"]
