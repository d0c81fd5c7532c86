"""The table of what is taken of SkyPilot's files, over a clone of four small ones."""

from __future__ import annotations

import json

import pytest

from sublet.errors import BadInput
from sublet_lab.studies.skypilot import main, survey

FILES = {
    "examples/plain.yaml": "run: python x.py\nsetup: make\nresources: {cpus: 4+, any_of: [{infra: aws}, {infra: gcp}]}",
    "examples/mine.yml": "run: 'true'\nworkdir: ~/nobody/has/this\nenvs: {TOKEN: }",
    "examples/serves.yaml": "run: 'true'\nservice: {replicas: 1}",
    "examples/values.yaml": "a: 1",
    "llm/.hidden/two.yaml": "run: 'true'\n---\nrun: 'true'",
    "llm/inside.yaml": "run: 'true'\nfile_mounts: {/a: ./gone}",
    "llm/template.yaml": "run: {{ x }}",
}


FIVE = "dry run: resources.accelerators: not on a node of its own, or a part of one that can be had: " + ", ".join(
    f"H100:{gpus}" for gpus in (1, 16, 2, 4, 6, 8)
)


@pytest.fixture
def clone(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_every_file_with_a_command_that_serves_nothing_is_judged(clone):
    found = {each.file: each for each in survey(clone)}
    assert sorted(found) == ["examples/mine.yml", "examples/plain.yaml", "llm/.hidden/two.yaml", "llm/inside.yaml"]
    plain, mine = found["examples/plain.yaml"], found["examples/mine.yml"]
    assert (plain.taken, plain.here, len(plain.notes)) == (True, True, 3)
    assert (mine.taken, mine.here) == (True, False)  # a path outside the clone may be its author's
    assert found["llm/inside.yaml"].why.startswith("file_mounts: not a file or folder that exists")
    assert "several jobs" in found["llm/.hidden/two.yaml"].why


def test_the_table_says_how_many_are_taken_and_why_the_others_are_not(clone, capsys):
    assert main([str(clone)]) == 1  # two of four are below the goal
    told = capsys.readouterr().out
    assert "4 job files" in told
    assert "2 taken (50.0%) by the rules for files, paths of their authors supposed" in told
    assert "0 of the first write into a bucket, 0 run in a container" in told
    assert "1 taken (25.0%) as this machine is" in told
    assert [line.split()[-2:] for line in told.splitlines() if line.startswith("file_mounts")] == [
        ["1", "llm/inside.yaml"]
    ]
    assert [line.split()[-1] for line in told.splitlines() if line.startswith("resources.infra")] == ["1"]
    for name in ("llm/inside.yaml", "llm/.hidden/two.yaml"):
        (clone / name).unlink()
    assert main([str(clone), "--json"]) == 0
    assert [each["taken"] for each in json.loads(capsys.readouterr().out)["files"]] == [True, True]


def test_a_controller_is_asked_about_those_that_are_taken_and_what_it_refuses_is_counted(clone, capsys):
    resources = {"eight": "{accelerators: H100:8}", "five": "{accelerators: H100:5}", "tpu": "{accelerators: tpu-x:1}"}
    for name, text in resources.items():
        (clone / "llm" / f"{name}.yaml").write_text(f"run: torchrun --nproc_per_node 8 x.py; y\nresources: {text}")
    (clone / "llm" / "keyed.yaml").write_text("run: 'true'\nworkdir: ../keyed")
    (clone / "keyed").mkdir()
    (clone / "keyed" / ".netrc").write_text("machine x password y")
    found = {each.file: each for each in survey(clone, dry_run=True)}
    accepted = {name for name, each in found.items() if each.accepted}
    assert accepted == {"examples/mine.yml", "examples/plain.yaml", "llm/eight.yaml", "llm/tpu.yaml"}
    assert {name for name, each in found.items() if each.accepted_here} == accepted - {"examples/mine.yml"}
    five = found["llm/five.yaml"]
    assert (five.taken, five.why) == (True, FIVE)
    assert (found["llm/keyed.yaml"].taken, found["llm/keyed.yaml"].accepted) == (True, False)
    assert "is never sent: it has keys of yours" in found["llm/keyed.yaml"].why
    assert all(each.accepted is None for each in survey(clone))
    assert main([str(clone), "--dry-run"]) == 1
    told = capsys.readouterr().out
    assert "6 taken (75.0%)" in told
    assert "4 accepted (50.0%) by the dry run of a controller" in told
    assert "3 accepted (37.5%) by it as this machine is" in told
    assert [line.split()[-2:] for line in told.splitlines() if line.startswith(FIVE[:58])] == [["1", "llm/five.yaml"]]


def test_a_folder_that_is_no_clone_is_told_as_that(tmp_path, capsys):
    with pytest.raises(BadInput, match="no clone of SkyPilot"):
        survey(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "git clone" in capsys.readouterr().err
    assert main([]) == 2
