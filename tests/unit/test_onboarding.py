"""Whoever is new finds the file for a question in at most two hops: this page names it, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "guides").glob("*.md")), ROOT / "docs" / "README.md"]
QUESTIONS = {  # what somebody asks -> a file that must be named in that part of CONTRIBUTING
    "## Adding a policy": "src/sublet/testing/conformance/policies.py",
    "## Adding a provider": "src/sublet/runtime/providers/protocol.py",
    "| what happens on a notice": "src/sublet/runtime/controller/nodes/notices.py",
    "| what `explain` says": "src/sublet/runtime/controller_api/explain.py",
    "| what `price` weighs": "src/sublet/planning/options.py",
    "| what a provider must do": "src/sublet/runtime/providers/protocol.py",
    "| what a session saves": "src/sublet/train/state/state.py",
    "## Writing a test": "tests/rigs",
}


def part(heading):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    start = text.index(heading)
    return text[start : text.index("\n" if heading.startswith("|") else "\n## ", start + 1)]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_with_a_file(question):
    assert f"`{QUESTIONS[question]}`" in part(question)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_file_of_ours_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|examples|benchmarks|docs)/[\w./-]+)`", text)
    linked = re.findall(r"\]\(([\w./-]+\.(?:md|py))[)#]", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [name for name in linked if not (page.parent / name).exists()]
    assert missing == []


def test_no_test_imports_another_test_or_a_benchmark_and_no_benchmark_a_test():
    imports = re.compile(r"^\s*(?:from|import) (benchmarks|tests\.[\w.]*\btest_\w+)", re.MULTILINE)
    guilty = {path: imports.findall(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py")}
    assert {str(path): found for path, found in guilty.items() if found} == {}
    of_tests = re.compile(r"^\s*(?:from|import) tests\b", re.MULTILINE)
    assert [path for path in (ROOT / "benchmarks").rglob("*.py") if of_tests.search(path.read_text("utf-8"))] == []
