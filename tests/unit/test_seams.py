"""The world enters through seams: nobody else asks a clock, throws dice or gets a name of the machine.

So a controller with all its parts runs in a simulated world, from a seed, as it runs here. What is listed below still
does it by itself, with the reason; a file that no longer does must leave the list.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src/sublet"
ROOMS = ("runtime", "api", "wire", "train")  # what runs live; the brain has neither clock nor dice (see pyproject)
MODULES = {"time", "secrets", "uuid", "random"}  # any use
CALLS = {"os.urandom", "os.getrandom", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
ALLOWED = {
    "runtime/agent/processes.py": "waits for real processes to die",
    "train/checkpoint/checkpoints.py": "measures how long a write took",
    "train/checkpoint/disk.py": "waits for a lock of another process",
    "train/gradients.py": "measures a step",
    "train/peers.py": "sockets of torch",
    "train/report.py": "measures a step",
    "train/state.py": "the dice of the user's script are part of its state",
}


def asks_of(text: str) -> set[str]:
    """What a file asks the machine for by itself, by whatever name it imports it."""
    tree, names = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(each.asname or each.name.partition(".")[0]): each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {(each.asname or each.name): f"{node.module}.{each.name}" for each in node.names}
    found = {name for name in names.values() if "." in name}  # what is imported by itself needs no further look
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := _path(node, names)):
            found.add(path)
    attributes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):  # a module that is handed on: whoever gets it asks under another name
        if isinstance(node, ast.Name) and id(node) not in attributes and names.get(node.id) in MODULES:
            found.add(f"{names[node.id]}.*")
    found = {path.replace("datetime.datetime", "datetime").replace("datetime.date.", "date.") for path in found}
    return {ask for ask in found if ask.partition(".")[0] in MODULES or ask in CALLS}


def _path(node: ast.expr, names: dict[str, str]) -> str:
    """`time.monotonic` of that attribute, under whatever name the module was imported; "" of anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        inner = _path(node.value, names)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def files():
    return sorted(path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_asks_the_machine_for_nothing_by_itself(path):
    name, asks = str(path.relative_to(SOURCE)), asks_of(path.read_text())
    if name in ALLOWED:
        assert asks, f"{name} no longer asks for anything: take it off the list"
    else:
        assert not asks, f"{name} asks for {sorted(asks)}: take it from a Wall or Dice that you are given"


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("import time\ntime.monotonic()", {"time.monotonic"}),
        ("import time as t\nt.time()", {"time.time"}),
        ("from time import monotonic\nmonotonic()", {"time.monotonic"}),
        ("from datetime import UTC, datetime\ndatetime.now(UTC)", {"datetime.now"}),
        ("import datetime as dt\ndt.datetime.now()", {"datetime.now"}),
        ("from os import urandom as u\nu(8)", {"os.urandom"}),
        ("import time\nt = time\nt.monotonic()", {"time.*"}),
        ("import time\ngetattr(time, 'monotonic')()", {"time.*"}),
        ("from datetime import date\ndate.today()", {"date.today"}),
        ("import os\nos.urandom(8)", {"os.urandom"}),
        ("import secrets\nsecrets.token_hex(8)", {"secrets.token_hex"}),
        ("import uuid\nuuid.uuid4()", {"uuid.uuid4"}),
        ("from datetime import datetime\ndatetime.fromtimestamp(1)", set()),
        ("def f(self): self.time.monotonic()", set()),
    ],
)
def test_what_a_file_asks_for_is_seen_under_any_name(text, asks):
    assert asks_of(text) == asks
