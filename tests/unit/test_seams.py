"""The world enters through seams: nobody else asks a clock, throws rng or gets a name of the machine.

So a controller with all its parts runs in a simulated world, from a seed, as it runs here. What is listed below still
does it by itself, with the reason; a file that no longer does must leave the list.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src/sublet"
ROOMS = ("runtime", "api", "wire", "train")  # what runs live; the brain has neither clock nor rng (see pyproject)
MODULES = {"time", "secrets", "uuid", "random"}  # any use
CALLS = {
    *("os.urandom", "os.getrandom", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("tempfile.mkdtemp", "tempfile.mkstemp", "tempfile.mktemp", "tempfile.TemporaryDirectory"),
    *("tempfile.NamedTemporaryFile", "tempfile.TemporaryFile", "tempfile.SpooledTemporaryFile"),
}
SEEDED = {"default_rng", "Generator", "BitGenerator", "SeedSequence", "PCG64"}  # of numpy.random: rng that are given
HANDED_ON = {*MODULES, "os", "tempfile", "datetime", "datetime.datetime", "datetime.date", "numpy", "numpy.random"}
ALLOWED = {
    "runtime/agent/processes.py": "waits for real processes to die",
    "runtime/profiling/run.py": "a folder that is thrown away, for real processes",
    "runtime/rehearsal/launching.py": "the rng of the user's script begin alike in each run",
    "runtime/rehearsal/rehearse.py": "a folder that is thrown away, for real processes",
    "train/checkpoint/checkpoints.py": "measures how long a write took",
    "train/checkpoint/disk.py": "waits for a lock of another process",
    "train/numerics/gradients.py": "measures a step",
    "train/checkpoint/saving.py": "waits before it tries the last checkpoint again; tests give it another wait",
    "train/link/sockets.py": "waits for a store that is about to be opened",
    "train/numerics/seeds.py": "the rng of the user's script are part of its state",
}


def asks_of(text: str) -> set[str]:
    """What a file asks the machine for by itself, by whatever name it imports it."""
    tree, names = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                each.asname or (top := each.name.partition(".")[0]): each.name if each.asname else top
                for each in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {(each.asname or each.name): f"{node.module}.{each.name}" for each in node.names}
    found = {name for name in names.values() if "." in name}  # what is imported by itself needs no further look
    known = _only_named(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name) or not (path := _path(node, names)):
            continue
        if "." in path:
            found.add(path)
        if id(node) not in known and path in HANDED_ON:  # whoever gets it asks under another name
            found.add(f"{path}.*")
    found |= {f"{path}()" for node in ast.walk(tree) if (path := _without_a_seed(node, names))}
    found |= {f"{module}.*" for node in ast.walk(tree) if (module := _imported_by(node, names))}
    found = {path.replace("datetime.datetime", "datetime").replace("datetime.date.", "date.") for path in found}
    return {ask for ask in found if _is_of_the_machine(ask)}


def _is_of_the_machine(ask: str) -> bool:
    if ask.startswith("numpy.random."):
        return ask.rpartition(".")[2] not in SEEDED
    return ask.partition(".")[0] in MODULES or ask in CALLS or ask.endswith(".*")


def _only_named(tree: ast.Module) -> set[int]:
    """Names that are not handed on: the value of an attribute, a type, one of several, or what makes a value."""
    found: set[int] = set()
    for node in ast.walk(tree):
        types: list[ast.expr | None] = []
        if isinstance(node, ast.Attribute):
            found.add(id(node.value))
        elif isinstance(node, ast.arg | ast.AnnAssign):
            types = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            types = [node.returns]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            types = [node.args[1]]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            types = [node.left, node.right]
        elif isinstance(node, ast.Call):
            found.add(id(node.func))
        found |= {id(inner) for each in types if each is not None for inner in ast.walk(each)}
    return found


def _without_a_seed(node: ast.AST, names: dict[str, str]) -> str:
    """`numpy.random.default_rng` where nobody says from what: then the machine does."""
    path = _path(node.func, names) if isinstance(node, ast.Call) and not node.args + node.keywords else ""
    return path if path == "numpy.random.default_rng" else ""


def _imported_by(node: ast.AST, names: dict[str, str]) -> str:
    """The module that is imported by a call, if it is one to hide."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return ""
    by_name = isinstance(node.func, ast.Name) and node.func.id == "__import__"
    if not by_name and _path(node.func, names) != "importlib.import_module":
        return ""
    return str(node.args[0].value) if node.args[0].value in HANDED_ON else ""


def _path(node: ast.expr, names: dict[str, str]) -> str:
    """`time.monotonic` of that attribute, under whatever name the module was imported; "" of anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        inner = _path(node.value, names)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


# The heap, frames, byte-code and what only the end of the interpreter calls: each breaks with a release of Python.
INSIDES = {"get_objects", "get_referrers", "currentframe", "_getframe", "dis", "_run_exitfuncs"}


def insides_of(text: str) -> set[str]:
    """Which of these a file uses; or that it makes an object one of another class."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name) if name in INSIDES:
                found.add(name)
            case ast.Attribute(attr="__class__", ctx=ast.Store()):
                found.add("__class__")
    return found


def test_no_source_uses_the_insides_of_the_interpreter():
    found = {str(path.relative_to(SOURCE)): insides_of(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert {path: what for path, what in found.items() if what} == {}
    assert insides_of("import dis\nimport gc\ngc.get_objects()\nx.__class__ = Y") == {"dis", "get_objects", "__class__"}


def test_a_file_asks_the_machine_for_nothing_by_itself():
    files = [path for room in ROOMS for path in (SOURCE / room).rglob("*.py")]
    asks = {str(path.relative_to(SOURCE)): asks_of(path.read_text()) for path in files}
    found = {name: sorted(what) for name, what in asks.items() if what and name not in ALLOWED}
    assert not found, f"{found}: take it from a Wall or Rng that you are given"
    silent = [name for name in ALLOWED if not asks.get(name)]
    assert not silent, f"{silent} ask for nothing: take them off the list"


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("import time\ntime.monotonic()", {"time.monotonic"}),
        ("import time as t\nt.time()", {"time.time"}),
        ("from time import monotonic\nmonotonic()", {"time.monotonic"}),
        ("from datetime import UTC, datetime\ndatetime.now(UTC)", {"datetime.now"}),
        ("import datetime as dt\ndt.datetime.now()", {"datetime.now"}),
        ("from os import urandom as u\nu(8)", {"os.urandom"}),
        ("from os import urandom\nurandom(8)", {"os.urandom"}),
        ("import os\nos.getrandom(8)", {"os.getrandom"}),
        ("import os\no = os\no.urandom(8)", {"os.*"}),
        ("import os\ngetattr(os, 'urandom')(8)", {"os.*"}),
        ("import os.path\nos.urandom(8)", {"os.urandom"}),
        ("import time\nt = time\nt.monotonic()", {"time.*"}),
        ("import time\ngetattr(time, 'monotonic')()", {"time.*"}),
        ("from datetime import date\ndate.today()", {"date.today"}),
        ("from datetime import datetime\nD = datetime\nD.now()", {"datetime.*"}),
        ("import datetime\nD = datetime.datetime\nD.now()", {"datetime.*"}),
        ("from datetime import datetime\ngetattr(datetime, 'now')()", {"datetime.*"}),
        ("import numpy as np\nnp.random.rand()", {"numpy.random.rand"}),
        ("from numpy import random\nrandom.rand()", {"numpy.random.rand"}),
        ("import numpy as np\nr = np.random\nr.rand()", {"numpy.random.*"}),
        ("import numpy as np\nnp.random.default_rng()", {"numpy.random.default_rng()"}),
        ("import tempfile\ntempfile.mkdtemp()", {"tempfile.mkdtemp"}),
        ("from tempfile import TemporaryDirectory", {"tempfile.TemporaryDirectory"}),
        ("import importlib\nimportlib.import_module('time').time()", {"time.*"}),
        ("__import__('uuid').uuid4()", {"uuid.*"}),
        ("import os\nos.urandom(8)", {"os.urandom"}),
        ("import secrets\nsecrets.token_hex(8)", {"secrets.token_hex"}),
        ("import uuid\nuuid.uuid4()", {"uuid.uuid4"}),
        ("from datetime import datetime\ndatetime.fromtimestamp(1)", set()),
        ("def f(self): self.time.monotonic()", set()),
        ("from datetime import datetime\ndef f(at: datetime) -> datetime: return isinstance(at, datetime)", set()),
        ("import numpy as np\nnp.random.default_rng(7)", set()),
        ("import os\nos.environ", set()),
    ],
)
def test_what_a_file_asks_for_is_seen_under_any_name(text, asks):
    assert asks_of(text) == asks
