"""Every command that README, tutorial and guides show is typed, in the order of the page, and ends as the page says.

One controller serves a page. A command that is not run is in a table, with the reason; its words are tested with all
others (`tests/unit/test_guide_commands.py`).
"""

from __future__ import annotations

import pytest

from sublet.cli.main import SEEING, VERBS
from tests.rigs.guide_commands import PAGES, commands_of
from tests.rigs.guide_worlds import staged

pytestmark = pytest.mark.timeout(900)

NOT_RUN = {  # what begins so -> why
    "make ": "the repository's own targets: they install, or are the tests; that they exist is tested",
    "pip ": "installs from a network; that the extras exist is tested",
    "aws configure": "asks for the secrets of an account; the stand-in's are in the environment",
    "ray start": "starts or joins a cluster of machines; the one of the tests stands for it",
    "sublet study ": "minutes to half an hour; tests/unit/lab/studies runs the quick ones",
    "sublet spot skypilot-v100-2023-08 ": "of a record that is not ours to ship: `sublet data` says how to get it",
    "sublet demo --hosts": "minutes; tests/e2e/test_box.py has the hosts",
    "python -m sublet_lab.hosts ": "minutes to hours",
    "python -m sublet.runtime.agent ": "shows how a provider starts it; tests/conformance does",
    "python -m sublet_lab.world ": "what a seed that fails looks like; this one no longer fails",
    "pytest ": "tests of ours",
}
TYPED = {page: [command for command in commands_of(page.read_text("utf-8")) if not command.mention] for page in PAGES}
OFFERED = {name for heading in ("Run jobs", SEEING) for name, _ in VERBS[heading]} | {"budget", "token"}
ASKING = OFFERED - {"demo", "up", "move", "schema", "replay"}  # they need a controller


def why_not(command):
    return next((reason for begins, reason in NOT_RUN.items() if command.plain.startswith(begins)), "")


def asks(command):
    return command.program == "sublet" and not command.fails and command.words[1] in ASKING


def starts(command):
    return command.program == "sublet" and command.words[1] == "up"


SHOWN = [  # `make test` types the README alone: it has most of the verbs
    pytest.param(page, id=page.stem, marks=() if page.stem == "README" else pytest.mark.long)
    for page in PAGES
    if TYPED[page]
]


@pytest.mark.parametrize("page", SHOWN)
def test_every_command_of_a_page_ends_as_the_page_says(page, tmp_path):
    commands = [command for command in TYPED[page] if not why_not(command)]
    first = next((command for command in commands if asks(command) or starts(command)), None)
    with staged(tmp_path, commands) as stage:
        if first and asks(first):  # the page takes for granted that there is one
            assert stage.sublet("up", "--budget", "2/h")[0] == 0
            if any("--job" in command.plain for command in commands):
                assert stage.sublet("submit", "examples/mlp.yaml")[0] == 0
        for command in commands:
            code, said = stage.type(command)
            told = f"{page.name}:{command.line}: {command.plain}\nexit code {code}\n{said}"
            assert (code != 0) is command.fails, told


def test_what_is_not_run_still_stands_somewhere():
    shown = [command.plain for commands in TYPED.values() for command in commands]
    assert [begins for begins in NOT_RUN if not any(text.startswith(begins) for text in shown)] == []


PAGE = """
```bash
sublet up  # or: sublet up --no-budget; not both
FOO=1
```

```console
$ sublet ps; sublet cost
error: no
```
`sublet gc --dry-run | sublet run -- python a.py`
"""


def test_a_page_is_read_in_all_of_its_forms():
    found = [(command.line, command.plain, command.fails, command.mention) for command in commands_of(PAGE)]
    assert found == [
        (3, "sublet up", False, False),
        (3, "sublet up --no-budget", False, False),
        (4, "FOO=1", False, False),
        (8, "sublet ps", False, False),
        (8, "sublet cost", True, False),
        (11, "sublet gc --dry-run", False, True),
        (11, "sublet run -- python a.py", False, False),
    ]
