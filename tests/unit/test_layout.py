"""The layout of `src` keeps its promises: short files, small classes, no circles, one home for each definition."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from tests.figures import FIGURES, HERE, Module, cycles, modules_of

PROMISED = {title: find for title, find in FIGURES.items() if not title.endswith("(for information)")}
EXCEPTIONS = {  # what is found -> why it is right as it is
    "sublet.cli.main": "the list of the verbs",
    "sublet/cli/verbs/profile.py": "a verb is a file of its name",
    "sublet/cli/verbs/profiles.py": "the same: one measures, the other lists",
    "sublet/integrations/lightning/strategy.py": "the one file with private names of lightning",
    "sublet/runtime/agent/forking.py": "the one file with private names of threading",
    "sublet/runtime/providers/ray/steward.py": "the one file with private names of Ray",
    "sublet/train/private.py": "the one file with private names of torch",
    "sublet_lab/world/loop.py": "the one file with private names of asyncio",
}
TO_BE_MENDED = {}  # what is found and is not right: this list gets shorter, never longer


def module(path, text=""):
    return Module(PurePosixPath(path), path.removesuffix(".py").replace("/", "."), text, ast.parse(text))


def found_by(title, *modules):
    return list(FIGURES[next(name for name in FIGURES if title in name)](modules))


def test_the_layout_keeps_its_promises():
    """One test for all: each of them needs the whole tree parsed."""
    modules = modules_of(HERE)
    found = {title: set(find(modules)) for title, find in PROMISED.items()}
    known = EXCEPTIONS.keys() | TO_BE_MENDED
    broken = {title: sorted(what - known) for title, what in found.items() if what - known}
    assert not broken, f"{broken}: run 'make figures'"
    mended = known - set().union(*found.values())
    assert not mended, f"take {sorted(mended)} off the lists"


def test_a_long_file_is_found():
    assert found_by("lines", module("s/a.py", "\n" * 601), module("s/b.py", "\n" * 600)) == ["s/a.py"]


def test_a_module_that_imports_more_than_twenty_of_ours_is_found():
    others = [module(f"s/m{i}.py") for i in range(21)]
    wide = "".join(f"from s import m{i}\n" for i in range(20))
    assert found_by("import more", module("s/a.py", wide + "import os\n"), *others) == []
    wide += "def late():\n    from s.m20 import x\n"
    assert found_by("import more", module("s/a.py", wide), *others) == ["s.a"]


def test_a_constructor_of_more_than_eight_arguments_is_found():
    arguments = ", ".join(f"a{i}" for i in range(8))
    assert found_by("constructors", module("s/a.py", f"class A:\n    def __init__(self, {arguments}): ...")) == []
    assert found_by("constructors", module("s/a.py", f"class A:\n    def __init__(self, {arguments}, *, b): ...")) == [
        "s/a.py:A"
    ]
    fields = "".join(f"    a{i}: int\n" for i in range(9))
    assert found_by("constructors", module("s/a.py", f"@dataclass(slots=True)\nclass A:\n{fields}")) == ["s/a.py:A"]
    assert found_by("constructors", module("s/a.py", f"@dataclass(frozen=True)\nclass A:\n{fields}")) == []
    defaults = fields.replace("int\n", "int = 0\n")
    assert found_by("constructors", module("s/a.py", f"@dataclass(slots=True)\nclass A:\n{defaults}")) == []


def test_a_class_name_that_stands_twice_in_a_package_is_found():
    one, other = module("s/p/a.py", "class A: ..."), module("s/p/q/b.py", "class A: ...\nclass B: ...")
    assert found_by("class names", one, other) == ["s.p:A"]
    assert found_by("class names", one, module("s/q/b.py", "class A: ...")) == []


def test_a_private_name_of_another_library_is_found():
    ours = "class A:\n    def _own(self): ...\ndef f(a, b):\n    a._own()\n    os._exit(b._replace(c=1))\n"
    assert found_by("private", module("s/a.py", ours)) == []
    for text in ("import torch._dynamo", "from torch import _foreach", "def f(x):\n    x._theirs"):
        assert found_by("private", module("s/a.py", text)) == ["s/a.py"]
    assert found_by("private", module("s/a.py", "from sublet import _own\nfrom . import _other")) == []


def test_a_method_name_that_six_classes_share_is_found():
    text = "".join(f"class A{i}:\n    def hear(self): ...\n    def _own(self): ...\n" for i in range(5))
    protocol = "class P(Protocol):\n    def hear(self): ...\n"
    assert found_by("methods shared", module("s/p/a.py", text + protocol)) == []
    assert found_by("methods shared", module("s/p/a.py", text + protocol.replace("(Protocol)", ""))) == ["s.p:hear"]


def test_a_class_is_as_large_as_its_chain():
    half = "".join(f"    def f{i}(self): ...\n" for i in range(13))
    other = half.replace("def f", "def g")
    files = module("s/a.py", f"class A:\n{half}"), module("s/b.py", f"from s.a import A\nclass B(A):\n{other}")
    assert found_by("classes over", *files) == ["s/b.py:B"]
    again = module("s/b.py", f"from s.a import A\nclass B(A):\n{half}")
    assert found_by("classes over", files[0], again) == []


def test_bare_units_are_found_in_sums_and_nowhere_else():
    text = "a = 3600 * b\nc = d / 3600.0\ne = g * 1024**3\nWAIT_S = 3600.0\nf = n // 3600\nh = 360 * b\n"
    assert found_by("3600", module("s/a.py", text)) == ["s/a.py:1", "s/a.py:2", "s/a.py:3"]


def test_an_import_for_types_closes_a_circle():
    one = module("s/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from s.b import B\n")
    other = module("s/b.py", "def late():\n    from . import a\n")
    assert found_by("circles of modules", one, other) == ["s.a s.b"]
    assert found_by("circles of modules", one, module("s/b.py")) == []


def test_a_circle_of_folders_needs_no_circle_of_files():
    files = (
        module("s/p/a.py", "import s.q.a"),
        module("s/q/a.py"),
        module("s/q/b.py", "from s.p import b"),
        module("s/p/b.py"),
    )
    assert found_by("circles of folders", *files) == ["p q"]
    assert found_by("circles of modules", *files) == []


def test_a_prefix_that_is_a_folder_or_should_be_one_is_found():
    files = [
        module(f"s/{name}.py") for name in ("jobs/job_file", "jobs/jobs", "x/a", "x/a_b", "y/c_d", "y/c_e", "y/other_f")
    ]
    assert found_by("prefix", *files) == [
        "s/jobs/job_file.py",
        "s/jobs/jobs.py",
        "s/x/a.py",
        "s/x/a_b.py",
        "s/y/c_d.py",
        "s/y/c_e.py",
    ]


def test_a_module_beside_its_package_is_found():
    assert found_by("beside", module("s/a.py"), module("s/a/b.py"), module("s/b.py")) == ["s/a.py"]


def test_silence_needs_a_reason():
    text = "a  # noqa: S101\nb  # noqa: S101 - why\nc  # type: ignore[misc] # why\nd  # type: ignore[misc]\n"
    text += "e  # noqa: S101  # type: ignore[misc]\nf  # type: ignore[misc]  # noqa: S101 - why\ng  # noqa: S101 #\n"
    found = [what.partition(" ")[0] for what in found_by("reason", module("s/a.py", text))]
    assert found == ["s/a.py:1", "s/a.py:4", "s/a.py:5", "s/a.py:7"]


def test_array_types_and_units_are_found_when_they_are_said_twice():
    one = module("s/a.py", "Floats = npt.NDArray[np.float64]\nDAY_S = 86_400.0\nSECONDS_PER_H = 3600\n")
    other = module(
        "s/b.py", "Rates = NDArray[np.float64]\nInts = NDArray[np.intp]\nDAY_S: float = 24 * 3600.0\nWAIT_S = 3600.0\n"
    )
    assert found_by("array types", one, other) == ["s/a.py:Floats", "s/b.py:Rates"]
    assert found_by("units", one, other) == ["s/a.py:DAY_S", "s/b.py:DAY_S"]


def test_nested_circles_are_one():
    assert cycles({"a": "b", "b": "c", "c": "ab", "d": "a", "e": "f", "f": "e"}) == [["a", "b", "c"], ["e", "f"]]
