"""The sub-packages of the controller: each has one face, imports point one way, and no constructor takes a crowd."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import pytest

from tests.figures import HERE

SOURCE = HERE / "src" / "sublet"
CONTROLLER = SOURCE / "runtime" / "controller"
LAYERS = ("watch", "", "money", "memory", "files", "jobs", "nodes", "core")  # "" = the files beside the sub-packages
IMPORT = re.compile(r"^\s*from sublet\.runtime\.controller(?:\.(\w+))?(?:\.(\w+))? import", re.MULTILINE)
MOST_ARGUMENTS, MOST_OF_A_NAME = 6, 5
STORED = {"facts", "from_facts"}  # the protocol of what is stored


def layer_of(path):
    return path.parent.name if path.parent.parent == CONTROLLER else ""


def imports(path):
    """(sub-package, module in it or None) of each import from the controller."""
    for first, second in IMPORT.findall(path.read_text(encoding="utf-8")):
        yield (first, second or None) if first in LAYERS else ("", None)


def classes():
    for path in CONTROLLER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "Protocol" not in [ast.unparse(base) for base in node.bases]:
                yield node


def methods(node):
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_others_import_the_face_of_a_sub_package_and_nothing_inside():
    inside = {
        (str(path.relative_to(SOURCE)), f"{package}.{module}")
        for path in SOURCE.rglob("*.py")
        for package, module in imports(path)
        if package and module and not (path.parent.parent == CONTROLLER and path.parent.name == package)
    }
    assert inside == set()


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_among_the_sub_packages_point_down(layer):
    found = {package for path in CONTROLLER.rglob("*.py") if layer_of(path) == layer for package, _ in imports(path)}
    assert found <= set(LAYERS[: LAYERS.index(layer) + 1])


def test_no_constructor_takes_more_than_six_arguments():
    counts = {
        node.name: len(made.args.args) + len(made.args.kwonlyargs) - 1
        for node in classes()
        for made in methods(node)
        if made.name == "__init__"
    }
    assert len(counts) > 30
    assert {name: count for name, count in counts.items() if count > MOST_ARGUMENTS} == {}


def test_no_name_of_a_method_is_shared_by_more_than_five_classes():
    shared = defaultdict(set)
    for node in classes():
        for method in methods(node):
            if not method.name.startswith("__"):
                shared[method.name].add(node.name)
    assert {name: sorted(of) for name, of in shared.items() if len(of) > MOST_OF_A_NAME and name not in STORED} == {}
