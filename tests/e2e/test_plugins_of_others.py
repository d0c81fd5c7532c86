"""A package of somebody else: its plug-ins are found by their names, and the suites pass them or say why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ENTRY_POINTS = """[sublet.policies]
largest-first = largest_first:LargestFirst
spendthrift = wrong:Spendthrift
forgetful = wrong:Forgetful

[sublet.forecasters]
recent-mean = recent_mean:RecentMean
"""
WRONG = '''
from dataclasses import dataclass

from sublet.domain.plan import Plan
from sublet.domain.shape import Shape


@dataclass(frozen=True)
class Spendthrift:
    """Everybody gets everything, whether it is there or not."""

    def decide(self, snapshot):
        pool = next(iter(snapshot.pools))
        states = [*snapshot.active.values(), *snapshot.waiting.by(lambda state: state.job.submit_s)]
        return Plan(shapes={state.job.id: Shape(pool=pool, gpus=state.job.max_gpus) for state in states})


@dataclass
class Forgetful:
    """Never gives anybody anything."""

    def decide(self, snapshot):
        return Plan()
'''
SUITES = """
from sublet_lab.forecasting.conformance import ForecasterSuite
from sublet.testing.conformance.policies import PolicySuite


class TestLargestFirst(PolicySuite):
    registered_as, examples = "largest-first", 8


class TestRecentMean(ForecasterSuite):
    registered_as, examples = "recent-mean", 8


class TestSpendthrift(PolicySuite):
    registered_as, examples = "spendthrift", 8


class TestForgetful(PolicySuite):
    registered_as, examples = "forgetful", 8


class TestNobody(PolicySuite):
    registered_as = "largest-frist"
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Installed as pip would install it: modules, and a record of the entry points beside them."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("largest_first.py", "recent_mean.py"):
        shutil.copy(EXAMPLES / name, folder)
    (folder / "wrong.py").write_text(WRONG)
    (folder / "test_suites.py").write_text(SUITES)
    record = folder / "my_plugins-0.1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugins\nVersion: 0.1\n")
    (record / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def run(package, *arguments):
    environment = os.environ | {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)


def pytest_says(package, *arguments):
    return run(package, "pytest", "-q", "-p", "no:cacheprovider", "test_suites.py", *arguments)


def test_they_are_listed_beside_ours(package):
    answer = run(package, "sublet", "policies")
    assert "largest-first" in answer.stdout, answer.stderr
    assert "The widest waiting job that fits starts first" in answer.stdout


def test_a_sound_policy_and_a_sound_forecaster_pass(package):
    answer = pytest_says(package, "-k", "LargestFirst or RecentMean")
    assert answer.returncode == 0, answer.stdout
    assert "failed" not in answer.stdout
    assert int(answer.stdout.split(" passed")[0].split()[-1]) >= 45


def test_a_policy_that_promises_what_is_not_there_fails_and_is_told_why(package):
    answer = pytest_says(package, "-k", "Spendthrift and (promises or frozen_value)")
    assert "1 failed, 1 passed" in answer.stdout
    assert "pool p0: `hold` is less than was promised" in answer.stdout
    assert '"event":{"type":"JobSubmitted"' in answer.stdout, "the situation that shows it"


def test_a_policy_that_can_be_changed_or_starves_everybody_fails_and_is_told_why(package):
    answer = pytest_says(package, "-k", "Forgetful and (frozen_value or in_the_end)")
    assert "2 failed" in answer.stdout
    assert "Forgetful can be changed: say @dataclass(frozen=True)" in answer.stdout
    assert "jobs wait, everything can be had, and none runs" in answer.stdout


def test_a_name_with_a_typo_gets_help(package):
    answer = pytest_says(package, "-k", "Nobody and (registered or frozen_value)")
    assert "no entry point 'largest-frist' in the group sublet.policies" in answer.stdout
    assert "did you mean largest-first?" in answer.stdout, answer.stdout
