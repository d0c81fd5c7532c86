"""The wheel: it builds from a clone, installs, holds all bundled data, and its command runs without the clone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FROM_AN_INDEX = re.compile(r"pip install[^\n]*['\" ]sublet(?![-\w.])")


def built(project, folder):
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed: make setup")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Sublet alone, beside what it needs; nothing of the clone."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    command += ["--disable-pip-version-check", "--target", str(folder), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def call(installed, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("SUBLET_DATA", None)
    command = [str(installed / "bin" / "sublet"), *arguments]
    done = subprocess.run(
        command, cwd=installed, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_that_is_bundled_is_in_the_wheel(wheel):
    source = ROOT / "src" / "sublet"
    wanted = {
        path.relative_to(source.parent).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert any(name.startswith("sublet/data/") and name.endswith(".gz") for name in wanted)
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_the_command_runs_from_the_wheel(installed):
    assert "Usage: sublet" in call(installed, "--help")
    policies = json.loads(call(installed, "policies", "--json"))["policies"]
    assert "price" in {policy["name"] for policy in policies}


def test_bundled_data_are_read_from_the_wheel(installed):
    place = [sys.executable, "-c", "import sublet; print(sublet.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run(place, cwd=installed, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(installed)
    assert json.loads(call(installed, "offers", "--limit", "1", "--json"))["offers"]


def test_the_wheel_holds_the_product_and_its_public_tests_alone(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (points,) = [packed.read(name).decode() for name in names if name.endswith("/entry_points.txt")]
        code = b"".join(packed.read(name) for name in names if name.endswith(".py"))
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"sublet"}
    assert "sublet/studies/__init__.py" not in names
    assert re.findall(rb"^\s*(?:from|import) sublet_lab", code, re.MULTILINE) == []
    assert "sublet_lab" not in points
    assert {name.split("/")[2].removesuffix(".py") for name in names if name.startswith("sublet/testing/")} == {
        *("__init__", "conformance", "driver", "interrupted", "memory_cloud", "paced", "pretended"),
        *("rigs", "strategies", "values"),
    }


def test_the_demonstration_finds_its_scripts_in_the_wheel(installed):
    look = "from sublet.demo.scene import demo_jobs; print(*(job.argv[1] for job in demo_jobs()), sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", look]
    done = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=True)
    found = [Path(line) for line in done.stdout.split()]
    assert len(found) == 3
    for path in found:
        assert path.is_relative_to(installed)
        assert path.read_bytes() == (ROOT / "examples" / path.name).read_bytes()


def test_the_laboratory_has_a_wheel_of_its_own(tmp_path):
    names = zipfile.ZipFile(built(ROOT / "lab", tmp_path)).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"sublet_lab"}
    assert "sublet_lab/imports/digests.csv" in names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_says_to_install_from_an_index(page):
    assert FROM_AN_INDEX.findall(page.read_text(encoding="utf-8")) == []
