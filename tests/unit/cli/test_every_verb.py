"""What holds for every verb: a form for machines, and an answer on standard output alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from sublet.cli import main
from sublet.cli.main import assembled, run
from sublet.cli.work import controller_process
from tests.rigs.in_memory_api import served


def verbs(command=None, path=()):
    """Every verb with its options, those of groups included."""
    command = command or get_command(assembled())
    for name, each in getattr(command, "commands", {}).items():
        yield from verbs(each, (*path, name))
    if not getattr(command, "commands", {}):
        yield " ".join(path), {option for parameter in command.params for option in parameter.opts}


def test_help_is_that_of_all_verbs_and_reads_the_options_of_none():
    whole, light = get_command(assembled()), main._command("")
    texts = [each.get_help(each.make_context("sublet", ["ps"])) for each in (whole, light)]
    assert texts[0] == texts[1]
    assert {name for name, options in verbs(light) if options} == set()


@pytest.mark.parametrize("verb", ["ps", "status", "budget", "data", "up"])
def test_a_verb_that_is_typed_has_all_of_its_options_and_no_other_has(verb):
    typed = {name: options for name, options in verbs(main._command(verb)) if options}
    assert typed == {name: options for name, options in verbs() if name.split()[0] == verb}


def test_a_shell_that_completes_sees_all(monkeypatch):
    assert main._verb_of(["--json", "ps", "x"]) == "ps"
    assert main._verb_of(["--help"]) == ""
    monkeypatch.setenv("_SUBLET_COMPLETE", "complete_bash")
    assert main._verb_of(["ps"]) is None


def test_every_verb_takes_json():
    found = dict(verbs())
    assert {"demo", "down", "budget top-up", "schema", "logs"} < set(found)
    assert [verb for verb, options in found.items() if "--json" not in options] == []


def test_every_verb_takes_a_form():
    assert [verb for verb, options in verbs() if "-o" not in options] == []


@pytest.mark.parametrize(
    "verb", [["policies"], ["profiles"], ["schema"], ["offers", "--limit", "2"], ["study", "--list"]]
)
def test_yaml_says_what_json_says(verb, capsys):
    assert run([*verb, "-o", "json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert run([*verb, "-o", "yaml"]) == 0
    as_yaml = yaml.safe_load(capsys.readouterr().out)
    as_json["command"] = as_yaml["command"] = ""
    assert as_yaml == as_json
    assert run([*verb, "--json"]) == 0
    assert {**json.loads(capsys.readouterr().out), "command": ""} == as_json


@pytest.fixture
def there(tmp_path, monkeypatch):
    with served(tmp_path) as found:
        monkeypatch.setenv("SUBLET_STATE", str(found.state.path))
        monkeypatch.delenv("SUBLET_SERVER", raising=False)
        yield found


@pytest.mark.parametrize(
    "verb",
    [
        ["pause", "gpt"],
        ["scale", "gpt", "--workers", "1..2"],
        ["budget", "top-up", "3"],
        ["budget", "set", "--purse", "9"],
        ["cancel", "gpt"],
    ],
)
def test_a_verb_that_changes_something_answers_with_one_document(there, tmp_path, capsys, verb):
    job = tmp_path / "job.yaml"
    (tmp_path / "train.py").write_text("")
    job.write_text("name: gpt\nrun: python train.py\n")
    assert run(["submit", str(job), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1
    assert run([*verb, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


@pytest.fixture
def job(there, tmp_path):
    """The path of a job file; a job of it prints two lines and ends."""
    submit = there.api.submit

    async def submit_and_end(spec, **facts):
        answer = await submit(spec, **facts)
        there.api.change(answer["job_id"], phase="finished", progress=1.0)
        (there.api.folder / f"{answer['job_id']}-0.log").write_text("one\ntwo: 2\n")
        return answer

    there.api.submit = submit_and_end
    (tmp_path / "train.py").write_text("")
    path = tmp_path / "job.yaml"
    path.write_text("name: gpt\nrun: python train.py\n")
    return str(path)


def as_lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(("form", "read"), [("json", as_lines), ("yaml", yaml.safe_load_all)])
def test_what_goes_on_and_on_has_one_form_from_its_first_word_to_its_last(job, capsys, form, read):
    assert run(["submit", job, "--follow", "-o", form]) == 0
    first, *log = read(capsys.readouterr().out)
    assert first["name"] == "gpt"
    assert [line["line"] for line in log] == ["one", "two: 2"]
    assert run(["logs", "gpt", "-o", form]) == 0
    assert [line["line"] for line in read(capsys.readouterr().out)] == ["one", "two: 2"]


def test_budget_alone_shows_it_in_the_form_that_is_asked_for(there, capsys):
    assert run(["budget", "show", "--json"]) == 0
    shown = capsys.readouterr().out
    assert run(["budget", "--json"]) == 0
    assert capsys.readouterr().out == shown
    assert run(["budget", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == json.loads(shown)
    assert run(["budget"]) == 0
    assert "burn limit" in capsys.readouterr().out
    assert run(["budget", "--json", "show"]) == 2
    assert "sublet budget show -o json" in capsys.readouterr().err


def test_stopping_is_told_as_a_document_too(there, capsys, monkeypatch):
    monkeypatch.setattr(controller_process, "stop", lambda state, end_jobs=False: True)
    assert run(["down", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ran"], told["stopped"], told["jobs_ended"]) == (True, True, False)


def test_the_demonstration_answers_with_a_document_and_shows_its_progress_elsewhere(there, capsys, monkeypatch):
    submit = there.api.submit

    async def submit_and_end(spec, **facts):
        answer = await submit(spec, **facts)
        there.api.change(answer["job_id"], phase="finished", progress=1.0)
        return answer

    there.api.submit = submit_and_end
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(there.state.path))
    monkeypatch.setattr(controller_process, "start", lambda settings: None)
    monkeypatch.setattr(controller_process, "stop", lambda state: True)
    assert run(["demo", "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["finished"] is True
    assert [job["phase"] for job in told["jobs"]] == ["finished"] * 3
    assert told["cost"]["usd_total"] >= 0
    assert "A cloud in a box" in said.err


def test_the_reference_says_which_verbs_can_be_quiet():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("| `-q`")]
    quiet = [verb for verb, options in verbs() if "-q" in options]
    assert [verb for verb in quiet if f"`{verb}`" not in line] == []
    assert len(quiet) == line.partition(":")[0].count("`") // 2 - 2, "it names others too"
