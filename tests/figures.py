"""Figures of the layout of `src`, of this tree or of any other: what `make figures` prints and the tests hold us to.

`python -m tests.figures` prints this tree, `python -m tests.figures OTHER` another one beside it (before, after).
Nothing of the tree is imported, so that any commit can be measured; in processes apart tests are collected, and the
way of an event through `price` is followed (`tests/journey.py`).
"""

from __future__ import annotations

import ast
import gc
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

from tests.prose import areas_of

__all__ = ["FIGURES", "Module", "cycles", "modules_of"]

MOST_LINES = 600
MOST_METHODS = 25
MOST_IMPORTS = 20
MOST_ARGUMENTS = 8
MOST_SHARED = 5
FEW_LINES = 60
OURS = ("sublet", "sublet_lab", "tests")
DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace"}
HERE = Path(__file__).parents[1]
NUMERATORS = "SECONDS|MICROSECONDS|MINUTES|HOURS|DAYS|BYTES|BITS|MICRO_USD"
DENOMINATORS = "S|SECOND|MIN|MINUTE|H|HOUR|DAY|WEEK|USD|KIB|MIB|GIB|TIB|GB|GBIT"
UNIT = re.compile(rf"_?((({NUMERATORS})_PER_({DENOMINATORS}))|(MINUTE|HOUR|DAY|WEEK)_S|[KMGT]I?B)")
REASON = re.compile(r"#\s*(noqa|type:\s*ignore)\b[^#]*?(\s-\s+\S|#\s*(?!noqa\b|type:)[^\s#])")
SILENCED = re.compile(r"#\s*(noqa|type:\s*ignore)\b")
Found = Mapping[str, str]  # what was found -> a word on it


@dataclass(frozen=True)
class Module:
    """One file of the tree: its path from `src`, its dotted name, its text and what it parses to."""

    path: PurePosixPath
    name: str
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of its tree: nearly every figure asks for them."""
        return list(ast.walk(self.tree))

    @property
    def folder(self) -> PurePosixPath:
        """The package it lies in."""
        return self.path.parent

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__` of its folder."""
        return self.path.name == "__init__.py"


def modules_of(tree: Path) -> list[Module]:
    """Every Python file below `tree/src` and `tree/lab/src`, by path."""
    found = []
    gc.disable()  # a million nodes, all of which stay: to look for garbage among them is half of the time
    roots = (tree / "src", tree / "lab" / "src")
    files = [(PurePosixPath(file.relative_to(root)), file) for root in roots for file in root.rglob("*.py")]
    for path, file in sorted(files):
        parts = path.with_suffix("").parts
        text = file.read_text(encoding="utf-8")
        found.append(Module(path, ".".join(parts[:-1] if path.name == "__init__.py" else parts), text, ast.parse(text)))
        _ = found[-1].nodes
    gc.freeze()
    gc.enable()
    return found


def long_files(modules: Iterable[Module]) -> Found:
    """Files of more than 600 lines: none is one thing."""
    lines = {module.path: _lines(module) for module in modules}
    return {str(path): f"{count} lines" for path, count in lines.items() if count > MOST_LINES}


def short_files(modules: Iterable[Module]) -> Found:
    """Files of fewer than 60 lines, those that make a folder a package apart."""
    lines = {module.path: _lines(module) for module in modules if not module.is_package}
    return {str(path): f"{count} lines" for path, count in lines.items() if count < FEW_LINES}


def wide_modules(modules: Iterable[Module]) -> Found:
    """Modules that import more than 20 others of ours; imports for types and inside functions count like all others."""
    fan_out = {name: len(targets) for name, targets in _imports(list(modules)).items()}
    return {name: f"imports {count}" for name, count in fan_out.items() if count > MOST_IMPORTS}


def wide_constructors(modules: Iterable[Module]) -> Found:
    """Classes that are made of more than 8 things: arguments of `__init__`, or fields that a dataclass must be given.

    Frozen dataclasses and tuples are values and have as many fields as they need.
    """
    found = {}
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and (count := _arguments(node)) > MOST_ARGUMENTS:
                found[f"{module.path}:{node.name}"] = f"{count} arguments"
    return found


def repeated_classes(modules: Iterable[Module]) -> Found:
    """Class names that stand in more than one file of a package (`sublet.runtime`, with all folders below it)."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        package = ".".join(module.folder.parts[:2])
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                homes[f"{package}:{node.name}"].append(str(module.path))
    return {name: " ".join(paths) for name, paths in sorted(homes.items()) if len(set(paths)) > 1}


def common_methods(modules: Iterable[Module]) -> Found:
    """Method names that more than five classes of a package have, protocols, dunders and private ones apart."""
    classes: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        package = ".".join(module.folder.parts[:3])
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and "Protocol" not in {ast.unparse(base) for base in node.bases}:
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
                        classes[f"{package}:{inner.name}"].add(f"{module.path}:{node.name}")
    return {name: f"{len(of)} classes" for name, of in sorted(classes.items()) if len(of) > MOST_SHARED}


def private_names(modules: Iterable[Module]) -> Found:
    """Private names of other libraries: of what a file imports, and attributes that nothing of ours defines.

    Each library may have one file of ours where its private names stand (`sublet/train/private.py` for torch). Names
    with an underscore that are documented (`os._exit`, `_replace` of a tuple) are public.
    """
    modules = list(modules)
    ours = {name for module in modules for name in _defined(module.nodes)} | DOCUMENTED
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                imported = []
                if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in ours:
                    found[str(module.path)].add(node.attr)
            for name in imported:
                parts = name.split(".")
                if parts[0] not in OURS and any(map(_is_private, parts)):
                    found[str(module.path)].add(name)
    return {path: " ".join(sorted(names)) for path, names in sorted(found.items())}


def whole_classes(modules: Iterable[Module]) -> Found:
    """Classes with more than 25 methods, those inherited from classes of `src` counted; one said again counts once."""
    classes = {
        f"{module.name}.{node.name}": (module, node)
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
    }
    counts = {f"{module.path}:{node.name}": len(_methods(name, classes)) for name, (module, node) in classes.items()}
    return {place: f"{count} methods" for place, count in counts.items() if count > MOST_METHODS}


def module_cycles(modules: Iterable[Module]) -> Found:
    """Modules that import one another in a circle; imports for types and inside functions count like all others."""
    return {" ".join(circle): f"{len(circle)} modules" for circle in cycles(_imports(list(modules)))}


def package_cycles(modules: Iterable[Module]) -> Found:
    """Folders that import one another in a circle, each with its own files; those of the root stand alone."""
    modules = list(modules)
    folder = {module.name: ".".join(module.folder.parts[1:]) or module.name for module in modules}
    between: dict[str, set[str]] = defaultdict(set)
    for source, targets in _imports(modules).items():
        between[folder[source]] |= {folder[target] for target in targets} - {folder[source]}
    return {" ".join(circle): f"{len(circle)} folders" for circle in cycles(between)}


def shadowed_modules(modules: Iterable[Module]) -> Found:
    """Modules beside a package of the same name: `x.py` and `x/` in one folder."""
    modules = list(modules)
    folders = {module.folder for module in modules}
    return {str(module.path): "" for module in modules if module.path.with_suffix("") in folders}


def prefixed_files(modules: Iterable[Module]) -> Found:
    """Files whose name begins with a folder's, or with that of siblings which should be one.

    The first word of `a_x.py` is `a`; a plural `s` does not count. A file is found if its first word (of several) is
    the name of a folder above it, or if another file in its folder has the same first word (`a_x` and `a_y`, `a` and
    `a_x`: then both are found). A file named for its folder as a whole (`kernel/kernel.py`) carries no prefix.
    """
    by_word: dict[tuple[PurePosixPath, str], list[PurePosixPath]] = defaultdict(list)
    found: dict[str, str] = {}
    for module in modules:
        if module.path.stem.startswith("_"):
            continue
        words = module.path.stem.split("_")
        by_word[module.folder, _singular(words[0])].append(module.path)
        above = {_singular(name) for name in module.folder.parts[1:]}
        if len(words) > 1 and _singular(words[0]) in above:
            found[str(module.path)] = f"in {words[0]}/"
    for (_, word), family in by_word.items():
        if len(family) > 1:
            found |= {str(path): f"family {word}" for path in family}
    return dict(sorted(found.items()))


def bare_units(modules: Iterable[Module]) -> Found:
    """Products and quotients with a bare 3600 or 1024**3, which `domain/units.py` has names for."""
    found = {}
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
                numbers = (side for side in (node.left, node.right) if isinstance(side, ast.Constant | ast.BinOp))
                sides = {ast.unparse(side) for side in numbers}
                if bare := sides & {"3600", "3600.0", "1024 ** 3", "1024.0 ** 3"}:
                    found[f"{module.path}:{node.lineno}"] = bare.pop()
    return {place: number for place, number in found.items() if not place.startswith("sublet/domain/units.py")}


def silent_noqa(modules: Iterable[Module]) -> Found:
    """`noqa` and `type: ignore` without a reason after ` - ` (or after a second `#`)."""
    found = {}
    for module in filter(lambda module: SILENCED.search(module.text), modules):
        silent = [
            f"{token.start[0]} {token.string}"
            for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
            if token.type == tokenize.COMMENT and SILENCED.search(token.string) and not REASON.search(token.string)
        ]
        found |= {f"{module.path}:{line}": "" for line in silent}
    return found


def array_types(modules: Iterable[Module]) -> Found:
    """Definitions of array types in modules, where the same kind of array has more than one name or home."""
    return _repeated(
        (f"{module.path}:{name}", f"{base}[{ast.unparse(value.slice)}]")
        for module, name, value in _constants(modules)
        if isinstance(value, ast.Subscript) and (base := ast.unparse(value.value).rpartition(".")[2]) == "NDArray"
    )


def units(modules: Iterable[Module]) -> Found:
    """Definitions of units (`SECONDS_PER_H`, `DAY_S`, `GIB`), where the same number is defined more than once."""
    return _repeated(
        (f"{module.path}:{name}", str(float(number)))
        for module, name, value in _constants(modules)
        if UNIT.fullmatch(name) and (number := _number(value)) is not None
    )


FIGURES = {  # what each is called in print -> how it is found
    f"files over {MOST_LINES} lines": long_files,
    f"modules that import more than {MOST_IMPORTS}": wide_modules,
    f"constructors with more than {MOST_ARGUMENTS} arguments": wide_constructors,
    "class names more than once in a package": repeated_classes,
    "files with private names of other libraries": private_names,
    "circles of modules, imports for types counted": module_cycles,
    "modules beside a package of their name": shadowed_modules,
    "files with a prefix that is a folder, or should be": prefixed_files,
    "noqa and type: ignore without a reason": silent_noqa,
    "array types defined more than once": array_types,
    "units defined more than once": units,
    f"files under {FEW_LINES} lines (for information)": short_files,
    f"methods shared by over {MOST_SHARED} classes (for information)": common_methods,
    f"classes over {MOST_METHODS} methods (for information)": whole_classes,
    "3600 and 1024**3 in sums (for information)": bare_units,
    "circles of folders (for information)": package_cycles,
}


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan, without recursion), sorted.

    >>> cycles({"a": "b", "b": "ac", "c": "d", "d": ""})
    [['a', 'b']]
    """
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: list[list[str]] = []
    for root in sorted(graph):
        todo: list[tuple[str, Iterator[str]]] = []
        _enter(root, graph, number, low, path, on_path, todo)
        while todo:
            node, targets = todo[-1]
            target = next(targets, None)
            if target is None:
                todo.pop()
                if todo:
                    low[todo[-1][0]] = min(low[todo[-1][0]], low[node])
                if low[node] == number[node]:
                    part = path[path.index(node) :]
                    del path[-len(part) :]
                    on_path -= set(part)
                    if len(part) > 1:
                        found.append(sorted(part))
            elif target not in number:
                _enter(target, graph, number, low, path, on_path, todo)
            elif target in on_path:
                low[node] = min(low[node], number[target])
    return sorted(found)


def _enter(node, graph, number, low, path, on_path, todo) -> None:
    if node in number:
        return
    number[node] = low[node] = len(number)
    path.append(node)
    on_path.add(node)
    todo.append((node, iter(sorted(graph.get(node, ())))))


def _imports(modules: list[Module]) -> dict[str, set[str]]:
    """Module -> the modules it imports anywhere in its text; `from a import b` is `a.b` where that is a module."""
    known = {module.name for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        package = module.name if module.is_package else module.name.rpartition(".")[0]
        graph[module.name] = set()
        for node in module.nodes:
            named: list[str] = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: 1 - node.level or None] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                named = [full if (full := f"{base}.{alias.name}") in known else base for alias in node.names]
            graph[module.name] |= {name for name in named if name in known and name != module.name}
    return graph


def _methods(name: str, classes: Mapping[str, tuple[Module, ast.ClassDef]]) -> set[str]:
    """Names of its methods; a base is found by its name in the module, or among what that imports from others."""
    module, node = classes[name]
    imported = {
        alias.asname or alias.name: f"{inner.module}.{alias.name}"
        for inner in module.nodes
        if isinstance(inner, ast.ImportFrom)
        for alias in inner.names
    }
    found = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)}
    for base in (ast.unparse(base).partition("[")[0] for base in node.bases):
        known = {imported.get(base, base), f"{module.name}.{base}"} & (classes.keys() - {name})
        found |= {method for each in known for method in _methods(each, classes)}
    return found


def _lines(module: Module) -> int:
    return module.text.count("\n")


def _arguments(node: ast.ClassDef) -> int:
    """How many things its constructor takes."""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return len(inner.args.posonlyargs + inner.args.args + inner.args.kwonlyargs) - 1
    made = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
    if "dataclass" not in made or "frozen=True" in made:
        return 0
    fields = [inner for inner in node.body if isinstance(inner, ast.AnnAssign) and inner.value is None]
    return sum("ClassVar" not in ast.unparse(field.annotation) for field in fields)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that a file gives to something: functions, classes, variables, attributes, and words in quotes (slots)."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _constants(modules: Iterable[Module]) -> Iterator[tuple[Module, str, ast.expr]]:
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                yield module, node.targets[0].id, node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                yield module, node.target.id, node.value


def _number(value: ast.expr) -> float | None:
    """The value of a constant expression, such as `1024.0**3` or `24 * 3600`."""
    text = ast.unparse(value)
    return eval(text) if re.fullmatch(r"[\d_.e+*/ ()<]+", text) else None  # noqa: S307 - digits and operators


def _repeated(definitions: Iterable[tuple[str, str]]) -> Found:
    found = dict(definitions)
    times = Counter(found.values())
    return {place: what for place, what in found.items() if times[what] > 1}


def _singular(word: str) -> str:
    return word.removesuffix("s")


def _register(project: Mapping[str, Any], place: Path) -> None:
    """What an installation would write: the names of its plug-ins."""
    name = project["name"].replace("-", "_")
    metadata = place / f"{name}-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n", encoding="utf-8")
    lines = [
        line
        for group, named in project.get("entry-points", {}).items()
        for line in (f"[{group}]", *(f"{k} = {named[k]}" for k in named))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def collected_tests(tree: Path) -> int:
    """How many tests pytest collects there, with that tree's `src` and entry points instead of the installed ones."""
    with tempfile.TemporaryDirectory() as place:
        for project in (tree / "pyproject.toml", tree / "lab" / "pyproject.toml"):
            if project.exists():
                _register(tomllib.loads(project.read_text(encoding="utf-8"))["project"], Path(place))
        path = os.pathsep.join([place, str(tree / "src"), str(tree / "lab" / "src")])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    said = re.search(r"^(\d+) tests? collected", done.stdout, re.MULTILINE)
    if said is None:
        message = f"pytest could not collect the tests of {tree}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise SystemExit(message)
    return int(said.group(1))


def prose(tree: Path) -> Iterator[str]:
    """A row for each area of the documentation and of the packages."""
    yield f"{'prose':34}{'words':>8}{'mean':>6}{'longest':>9}{'who':>6}{'avoided':>9}{'riddles':>9}\n"
    for area, found in areas_of(tree).items():
        words, mean, longest, who, avoided, riddles = found.figures()
        yield f"{area:34}{words:>8,}{mean:>6.1f}{longest:>9}{who:>6.1f}{avoided:>9}{riddles:>9}\n"


def journeys(tree: Path) -> tuple[dict[str, str], str]:
    """How long the way of an event through `price` is there, by what is counted; and the calls as a list."""
    path = os.pathsep.join([str(tree / "src"), str(tree / "lab" / "src")])
    done = subprocess.run(
        [sys.executable, str(HERE / "tests" / "journey.py")],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    heads = re.findall(r"^(.*): (\d+) stays in (\d+) rooms, (\d+) files$", done.stdout, re.MULTILINE)
    for title, stays, rooms, files in heads:
        counts = {"stays": stays, "rooms": rooms, "files": files, "returns": str(int(stays) - int(files))}
        found |= {f"an event in price, {title}: {what}": count for what, count in counts.items()}
    return found, done.stdout


def _sizes(modules: Iterable[Module]) -> Counter[str]:
    """Lines, of all and of each package of a distribution."""
    found: Counter[str] = Counter()
    for module in modules:
        parts = module.folder.parts
        for package in {parts[0], ".".join(parts[:2])}:
            found[package] += _lines(module)
    return found


def _row(title: str, counts: Iterable[int]) -> str:
    return f"{title:54}" + "".join(f"{count:>10,}" for count in counts) + "\n"


def main(trees: list[Path]) -> None:
    """Print one column of counts a tree, then what was found in the last."""
    from tests.unused import unused  # needs vulture

    read = [modules_of(tree) for tree in trees]
    write = sys.stdout.write
    heads = ["before", "after"] if len(trees) > 1 else ["now"]
    write(f"{'':54}" + "".join(f"{head:>10}" for head in heads) + "\n")
    write(_row("files", (len(modules) for modules in read)))
    write(_row("lines of a file, p50", (round(median(map(_lines, modules))) for modules in read)))
    sizes = [_sizes(modules) for modules in read]
    for package in sorted(set().union(*sizes)):
        write(_row(f"lines of {package}", (size[package] for size in sizes)))
    for title, find in FIGURES.items():
        write(_row(title, (len(find(modules)) for modules in read)))
    write(_row("members that only tests use", (len(unused(tree)) for tree in trees)))
    write(_row("tests collected", map(collected_tests, trees)))
    for tree in trees:
        write("\n" + "".join(prose(tree)))
    walked = [journeys(tree) for tree in trees]
    for title in walked[-1][0]:
        write(f"{title:54}" + "".join(f"{found[title]:>10}" for found, _ in walked) + "\n")
    write(f"\n{walked[-1][1]}")
    for title, find in FIGURES.items():
        found = find(read[-1])
        if found:
            write(f"\n{title}:\n" + "".join(f"  {what}  {detail}".rstrip() + "\n" for what, detail in found.items()))


if __name__ == "__main__":
    main([*(Path(name).resolve() for name in sys.argv[1:]), HERE])
