"""The layout of `src` keeps its promises: short files, small classes, no circles, one home for each definition."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from tests.figures import FIGURES, HERE, Module, cycles, modules_of

PROMISED = {title: find for title, find in FIGURES.items() if not title.endswith("(for information)")}
EXCEPTIONS = {  # what is found -> why it is right as it is
    "sublet/cli/verbs/profile.py": "a verb is a file of its name",
    "sublet/cli/verbs/profiles.py": "the same: one measures, the other lists",
    "sublet/testing/memory_cloud.py:MemoryCloud": "a provider and an engine in one: a test holds the whole cloud",
}


def module(path, text=""):
    return Module(PurePosixPath(path), path.removesuffix(".py").replace("/", "."), text, ast.parse(text))


def found_by(title, *modules):
    return list(FIGURES[next(name for name in FIGURES if title in name)](modules))


def test_the_layout_keeps_its_promises():
    """One test for all: whoever looks at one of them has parsed the whole tree."""
    modules = modules_of(HERE)
    found = {title: find(modules) for title, find in PROMISED.items()}
    broken = {
        title: sorted(set(what) - set(EXCEPTIONS)) for title, what in found.items() if set(what) - set(EXCEPTIONS)
    }
    assert not broken, f"{broken}: run 'make figures'"
    assert set(EXCEPTIONS) <= {what for of in found.values() for what in of}, "an exception that is none any more"


def test_a_long_file_and_a_large_class_are_found():
    methods = "".join(f"    def f{i}(self): ...\n" for i in range(26))
    text = f"class Big:\n{methods}" + "\n" * 600
    assert found_by("lines", module("s/a.py", text)) == ["s/a.py"]
    assert found_by("methods", module("s/a.py", text)) == ["s/a.py:Big"]


def test_a_class_is_as_large_as_its_chain():
    half = "".join(f"    def f{i}(self): ...\n" for i in range(13))
    other = half.replace("def f", "def g")
    files = module("s/a.py", f"class A:\n{half}"), module("s/b.py", f"from s.a import A\nclass B(A):\n{other}")
    assert found_by("inherited counted", *files) == ["s/b.py:B"]
    assert found_by("methods", *files) == []
    again = module("s/b.py", f"from s.a import A\nclass B(A):\n{half}")
    assert found_by("inherited counted", files[0], again) == []


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
