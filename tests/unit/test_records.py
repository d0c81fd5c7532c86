"""The records stay small and true: pages of the architecture, decisions that bind, the changelog, CONTRIBUTING."""

from __future__ import annotations

import re

import pytest

from tests.figures import HERE

DOCS = HERE / "docs"
PARTS = [
    *("kernel", "plans", "money", "reclaims", "controller", "agents", "files", "checkpoints", "session", "grids"),
    *("simulation", "testing"),
]
DECISIONS = sorted((DOCS / "adr").glob("[0-9]*.md"))
WRITTEN = [*(DOCS / "architecture").glob("*.md"), *DECISIONS, HERE / "CONTRIBUTING.md", HERE / "CHANGELOG.md"]
STATUS = re.compile(r"^\*\*Status\*\*: (accepted|proposed)$", re.MULTILINE)
WORD = re.compile(r"[A-Za-z_]\w{2,}")
AVOIDED = re.compile(r"\b(?:who|whoever|whom|nobody|somebody|rng|purse|purses|strikes?)\b", re.IGNORECASE)


def text_of(path):
    return path.read_text(encoding="utf-8")


def prose_of(path):
    """Without code, drawings, addresses of links and what stands in backticks."""
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?: {4,}|#|\|---).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", text))


def sentences_of(path):
    """Of the prose; a row of a table and a point of a list are of their own."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:- |\d\. |\|))|\s\|\s", prose_of(path))
    return [each for block in blocks for each in re.split(r"(?<=[.!?])\s+", " ".join(block.split())) if each]


def test_there_is_a_page_for_each_part_of_the_code():
    assert sorted(page.stem for page in (DOCS / "architecture").glob("*.md")) == sorted(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_a_page_of_the_architecture_is_read_in_minutes_and_has_a_drawing(part):
    text = text_of(DOCS / "architecture" / f"{part}.md")
    assert 300 <= len(text.split()) <= 900
    assert re.search(r"(?:^ {4,}\S.*\n){3,}|^```(?:text|mermaid)$", text, re.MULTILINE)
    assert "## Where to change what" in text or part == "controller"


def test_fewer_than_thirty_decisions_bind_and_each_has_a_status():
    assert 0 < len(DECISIONS) < 30
    assert [path.name for path in DECISIONS if not STATUS.search(text_of(path))] == []


def test_the_list_of_decisions_has_a_row_for_each_with_its_title_and_status():
    listed = text_of(DOCS / "adr" / "README.md")
    rows = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \| (\w+) \|$", listed, re.MULTILINE)
    titles = {path.name: text_of(path).partition("\n")[0].removeprefix("# ") for path in DECISIONS}
    assert {name: f"{number}: {title}" for number, name, title, _ in rows} == titles
    assert {name: status for _, name, _, status in rows} == {
        path.name: STATUS.search(text_of(path)).group(1) for path in DECISIONS
    }


def test_a_decision_that_is_named_binds():
    """`ADR 0075`, in docs, source and tests: one of before is not pointed to."""
    numbers = {path.name[:4] for path in DECISIONS}
    places = [path for room in ("src", "lab", "tests", "docs", "benchmarks") for path in (HERE / room).rglob("*.*")]
    places += [HERE / "README.md", HERE / "CONTRIBUTING.md", HERE / "CHANGELOG.md"]
    named = {
        (path.relative_to(HERE).as_posix(), number)
        for path in places
        if path.suffix in {".py", ".md", ".txt", ".yaml"} and "archive" not in path.parts
        for number in re.findall(r"\bADRs? (\d{4})", text_of(path))
    }
    assert {each for each in named if each[1] not in numbers} == set()


def test_every_name_of_the_architecture_is_in_the_code():
    """Classes, functions, fields, modules, variables, options in backticks: each is a word of some file."""
    rooms = [path for room in ("src", "lab", "tests", "examples") for path in (HERE / room).rglob("*.py")]
    rooms += [HERE / "Makefile", HERE / "pyproject.toml"]
    words = {word for path in rooms for word in WORD.findall(text_of(path))} | {path.stem for path in rooms}
    named = {
        (path.name, word)
        for path in [*(DOCS / "architecture").glob("*.md"), *DECISIONS, HERE / "CONTRIBUTING.md"]
        for code in re.findall(r"`([^`\n]+)`", text_of(path))
        for word in WORD.findall(code)
    }
    assert len(named) > 500
    assert {each for each in named if each[1] not in words} == set()


def test_the_site_leaves_the_archive_out_and_nothing_leads_there():
    import yaml

    facts = yaml.safe_load(text_of(HERE / "mkdocs.yml"))
    assert "adr/archive/" in facts["exclude_docs"].split()
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name != "archive"]
    assert [page for page in pages if re.search(r"\]\([^)]*archive/", text_of(page))] == []


def test_contributing_fits_on_a_page_or_two_and_names_ten_files():
    text = text_of(HERE / "CONTRIBUTING.md")
    assert len(text.split()) < 900
    rows = re.search(r"## Where to change what\n[^|]*((?:\|.*\n)+)", text).group(1).splitlines()[2:]
    first = [re.search(r"`(src/sublet/\S+\.py)`", row).group(1) for row in rows]
    assert len(set(first)) == len(first) == 10


def test_the_changelog_has_one_line_for_each_change():
    body = text_of(HERE / "CHANGELOG.md").partition("\n## ")[2]
    lines = [line for line in body.splitlines()[1:] if line]
    assert [line for line in lines if not re.match(r"### (?:Added|Changed|Fixed)$|- \S", line)] == []
    bullets = [line for line in lines if line.startswith("- ")]
    assert 50 <= len(bullets) <= 75
    assert [line for line in bullets if len(line) > 200] == []
    assert [line for line in lines if line.startswith("### ")] == ["### Added", "### Changed", "### Fixed"]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_records_are_in_short_sentences_and_plain_words(path):
    assert [each for each in sentences_of(path) if len(each.split()) > 40] == []
    assert AVOIDED.findall(prose_of(path)) == []
