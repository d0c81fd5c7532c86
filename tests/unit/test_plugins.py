"""Names become objects, and a typo gets help."""

from __future__ import annotations

from importlib import metadata

import pytest
from typer.main import get_command

import sublet
import sublet_lab
from sublet import plugins
from sublet.cli import main
from sublet.cli.main import run
from sublet.errors import UnknownName
from sublet.policies.fifo import Fifo

POLICIES = "sublet.policies"


def test_names_are_sorted_and_hold_the_bundled_policies():
    found = plugins.names(POLICIES)
    assert found == sorted(found)
    assert {"equal", "fifo", "las", "max-speedup", "srtf"} <= set(found)


def test_a_name_loads_what_is_registered_under_it():
    assert plugins.load(POLICIES, "fifo") is Fifo


def test_every_registered_name_loads():
    assert all(callable(plugins.load(POLICIES, name)) for name in plugins.names(POLICIES))


def test_a_typo_gets_a_suggestion_and_speaks_of_one_policy():
    with pytest.raises(UnknownName, match="no policy is called 'max-speedpu'; did you mean max-speedup") as caught:
        plugins.load(POLICIES, "max-speedpu")
    assert caught.value.known == plugins.names(POLICIES)


@pytest.mark.parametrize(
    ("group", "kind"),
    [("sublet.engines", "engine"), ("sublet.no-such-stores", "no-such-store"), ("sublet.forecasters", "forecaster")],
)
def test_an_empty_group_has_no_names_and_says_so(group, kind):
    with pytest.raises(UnknownName) as caught:
        plugins.load(group, "zzz-not-there")
    assert caught.value.kind == kind
    assert plugins.names("sublet.nothing-is-registered-here") == []


def test_the_product_ships_its_own_policies_and_the_laboratory_has_the_others():
    of_product = {point.name for point in metadata.distribution("sublet").entry_points if point.group == POLICIES}
    of_lab = {point.name for point in metadata.distribution("sublet-lab").entry_points if point.group == POLICIES}
    assert of_product == {"price", "fifo", "equal", "fastest", "liveput", "regions", "mip", "boa", "elastic-batch"}
    assert {"pollux", "sia", "max-speedup", "srtf", "parcae"} < of_lab
    assert of_product & of_lab == set()


def test_the_product_and_the_laboratory_are_of_one_version():
    assert sublet_lab.__version__ == sublet.__version__
    assert f"sublet=={sublet.__version__}" in metadata.requires("sublet-lab")


@pytest.fixture
def without_the_laboratory(monkeypatch):
    monkeypatch.setattr(plugins, "_entry_points", lambda group: {})
    main._command.cache_clear()  # verbs that were found before
    yield
    main._command.cache_clear()


@pytest.mark.parametrize(
    ("words", "what"), [(["study", "--list"], "study"), (["data"], "data"), (["demo", "--hosts"], "demo --hosts")]
)
def test_what_comes_with_the_laboratory_says_so_where_it_is_not_installed(without_the_laboratory, capsys, words, what):
    assert run(words) == 1
    told = capsys.readouterr().err
    assert f"sublet-lab, with which {what!r} comes, is not installed" in told
    assert "next: pip install ./lab in your clone" in told


def test_help_names_the_verbs_of_the_laboratory_where_it_is_not_installed(without_the_laboratory, capsys):
    assert run(["--help"]) == 0
    assert "With sublet-lab: reproduce" in capsys.readouterr().out
    assert set(main.OF_THE_LAB) <= set(get_command(main.assembled()).commands)
