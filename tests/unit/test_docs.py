"""What the documentation says of the code is there: names of the glossary, and paths."""

from __future__ import annotations

import importlib
import re

import pytest

from tests import llms
from tests.figures import HERE

GLOSSARY = (HERE / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
ROWS = [re.split(r"\s*\|\s*", line.strip("| \n")) for line in GLOSSARY.splitlines() if line.startswith("| ")]
WORDS = [row for row in ROWS if row[0] != "word"]


def found(name):
    """A package, a module, or a name in one."""
    whole = name if name.startswith("sublet_lab.") else f"sublet.{name}"
    try:
        return importlib.import_module(whole)
    except ModuleNotFoundError:
        module, _, attribute = whole.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", sorted({code for row in WORDS for code in re.findall(r"`([\w.]+)`", row[2])}))
def test_every_name_of_the_glossary_exists(name):
    assert found(name) is not None


def test_every_word_stands_once_in_a_row_of_three():
    assert len(WORDS) > 60
    assert {len(row) for row in WORDS} == {3}
    assert len({row[0] for row in WORDS}) == len(WORDS)


def test_every_row_names_a_place_in_the_code():
    assert [row[0] for row in WORDS if not re.fullmatch(r"`[\w.]+`", row[2])] == []


@pytest.mark.parametrize("page", ["docs/README.md", "CONTRIBUTING.md"])
def test_the_documentation_leads_to_the_glossary(page):
    assert "reference/glossary.md" in (HERE / page).read_text(encoding="utf-8")


PAGES = [HERE / "CONTRIBUTING.md", HERE / "README.md", *(HERE / "docs").rglob("*.md")]
TRUE_TODAY = [page for page in PAGES if page.parent.name != "archive"]  # records of before name what was there then
BELOW = re.compile(r"`((?:runtime|train|kernel|planning|policies|perf|sim|domain|market|wire|cli|api)/[\w/]+\.py)`")


@pytest.mark.parametrize("page", TRUE_TODAY, ids=lambda page: page.name)
def test_every_path_into_the_repository_exists(page):
    named = re.findall(r"`((?:src/sublet|lab|tests|benchmarks|examples)/[\w./-]*)", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (HERE / path).exists()] == []


@pytest.mark.parametrize("page", TRUE_TODAY, ids=lambda page: page.name)
def test_every_module_that_is_named_from_the_package_on_exists(page):
    named = BELOW.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not (HERE / "src" / "sublet" / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_page_or_file_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_whoever_reads_llms_txt_finds_every_page():
    """`python -m tests.llms` writes it."""
    assert llms.FILE.read_text(encoding="utf-8") == llms.text()


def calls_of_architecture():
    """(call, file below src/sublet), from sentences ("`A.b` (`c/d.py`)") and drawings (the file, then the call)."""
    found = []
    for page in sorted((HERE / "docs" / "architecture").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        found += re.findall(r"`([A-Z][\w.]+)`(?: in |\s\()`([\w/]+/\w+\.py)`", text)
        drawn = re.findall(r"^ {4,}(?:later: )?([\w/]+/\w+\.py) +([A-Za-z_][\w.]*)", text, re.MULTILINE)
        found += [(call.rstrip("."), file) for file, call in drawn]
    return found


def test_the_calls_that_are_drawn_are_in_the_files_beside_them():
    calls = calls_of_architecture()
    assert len(calls) >= 40
    for call, file in calls:
        text = (HERE / "src" / "sublet" / file).read_text(encoding="utf-8")
        name = call.rpartition(".")[2]
        assert re.search(rf"(def|class) {name}\b|^{name} = ", text, re.MULTILINE), (call, file)


def test_the_site_has_what_its_search_needs_and_asks_the_internet_for_nothing():
    """From a disk, search is done in a frame; without the file for that, pages would ask the internet for it."""
    import yaml

    facts = yaml.safe_load((HERE / "mkdocs.yml").read_text(encoding="utf-8"))
    assert "offline" in facts["plugins"]
    assert facts["theme"]["font"] is False
    scripts = facts["extra"]["polyfills"]
    assert [name for name in scripts if "iframe-worker" in name]
    assert [name for name in scripts if not (HERE / "docs" / name).is_file()] == []
