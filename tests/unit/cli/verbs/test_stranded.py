"""A controller goes nowhere without what its jobs need: refused before anything is stopped or paid."""

from __future__ import annotations

import json

import pytest

from sublet.cli.main import run
from sublet.cli.work import anchored, controller_process
from sublet.runtime.settings import Settings, settings_to_json
from sublet.runtime.store import Store


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Commands in a state directory of a provider whose jobs are given by outcome; which of them came through."""

    def begin(provider, outcomes):
        monkeypatch.setenv("SUBLET_STATE", str(tmp_path))
        (tmp_path / "settings.json").write_text(settings_to_json(Settings(state_dir=str(tmp_path), provider=provider)))
        store = Store(tmp_path / "log.sqlite")
        store.append(1.0, json.dumps({"event": {"type": "NodeReady"}, "actions": []}))
        for number, outcome in enumerate(outcomes):
            store.add_job(f"long-{number}", f"key-{number}", json.dumps({"name": f"long-{number}"}))
            store.change_job(f"long-{number}", facts=json.dumps({"outcome": outcome}))
        store.close()
        done = []

        def stop(*_, **__):
            done.append("paid or stopped")
            raise KeyboardInterrupt

        monkeypatch.setattr(anchored, "raise_anchor", stop)
        monkeypatch.setattr(controller_process, "start", stop)
        monkeypatch.setattr(controller_process, "stop", stop)
        return done

    return begin


@pytest.mark.parametrize("words", ["move --to aws", "up --on aws", "up --provider aws"])
@pytest.mark.parametrize(
    ("provider", "outcomes", "goes"),
    [
        ("local", ["finished", ""], False),
        ("local", ["finished", "cancelled", "failed"], True),
        ("local", [], True),
        ("aws", [""], True),
    ],
)
def test_jobs_whose_files_are_here_alone_are_not_left_behind(begun, capsys, words, provider, outcomes, goes):
    done = begun(provider, outcomes)
    code = run(words.split())
    assert (code != 2, bool(done)) == (goes, goes)
    told = capsys.readouterr().err
    assert ("on this machine alone: long-1" in told) == (not goes)
    assert "long-0" not in told


def test_one_that_stays_with_its_provider_goes_on(begun):
    done = begun("local", [""])
    run(["up"])
    assert done
