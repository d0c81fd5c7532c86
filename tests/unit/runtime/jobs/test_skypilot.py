"""Files for SkyPilot: what can be honoured is, what only asks for less choice is noted, the rest is refused."""

from __future__ import annotations

import pytest

from sublet.errors import BadInput
from sublet.runtime.jobs.file import job_from_text, json_schema

SCRIPT = "run: |\n  cd code\n  torchrun --nproc-per-node $SKYPILOT_NUM_GPUS_PER_NODE plain.py\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("from sublet import train\n")
    (tmp_path / "plain.py").write_text("import torch.distributed\n")
    return tmp_path


def job(text, folder, **given):
    return job_from_text(text, source="job.yaml", base=folder, environment={}, given=given)


def complaint(text, folder):
    with pytest.raises(BadInput) as caught:
        job(text, folder)
    return str(caught.value)


# ---------------------------------------------------------------------- what is noted


def test_what_only_asks_for_less_choice_is_noted_with_its_value(folder):
    text = """
run: python plain.py
resources:
  infra: aws/us-east-1
  cpus: 8+
  memory: 64
  disk_size: 512
  ports: [8080]
  autostop: {idle_minutes: 5}
  labels:
config: {gcp: {reserved: true}}
"""
    spec = job(text, folder)
    assert [note.partition(": ")[0] for note in spec.notes] == [
        "config = {'gcp'",
        "resources.infra = 'aws/us-east-1'",
        "resources.cpus = '8+'",
        "resources.memory = 64",
        "resources.disk_size = 512",
        "resources.ports = [8080]",
        "resources.autostop = {'idle_minutes'",
    ]
    assert spec.argv == ("python", "plain.py")


def test_a_key_that_is_noted_is_known_to_editors_and_a_misspelt_one_to_nobody(folder):
    schema = json_schema()
    assert {"infra", "cpus", "disk_size"} <= schema["$defs"]["Resources"]["properties"].keys()
    assert "config" in schema["properties"]
    told = complaint("run: python plain.py\nresources: {accelerator: A100, cpu: 4}", folder)
    assert "resources.accelerator is no key of a job file; did you mean accelerators" in told


@pytest.mark.parametrize(
    ("written", "kinds", "workers", "per_node", "noted"),
    [
        ("A100", ("A100",), 1, 0, False),
        ("'A100:8'", ("A100",), 8, 8, False),
        ("{'H100:8', 'H200:8'}", ("H100", "H200"), 8, 8, False),
        ("{H100: 4, H200: 4}", ("H100", "H200"), 4, 4, False),
        ("['L4', 'A10G:1']", ("L4", "A10G"), 1, 0, False),
        ("['L4:8', 'A100:4', 'A100:8', 'H100:2']", ("L4", "A100"), 8, 8, True),
        ("['A100:4', 'H100:2']", ("H100",), 2, 2, True),
    ],
)
def test_every_form_of_accelerators_is_kinds_and_one_number(folder, written, kinds, workers, per_node, noted):
    spec = job(f"run: python plain.py\nresources: {{accelerators: {written}}}", folder)
    assert (spec.accelerators, spec.min_workers, spec.max_workers) == (kinds, workers, workers)
    assert (spec.per_node, bool(spec.notes)) == (per_node, noted)


@pytest.mark.parametrize("written", ["'T4:0.5'", "'T4: .25'", "'T4:1.5'", "{T4: 0.5}", "['L4:1', 'T4:0.5']"])
@pytest.mark.parametrize("where", ["{accelerators: %s}", "{any_of: [{accelerators: %s}]}"])
def test_a_part_of_a_gpu_is_refused_in_words(folder, written, where):
    told = complaint(f"run: python plain.py\nresources: {where % written}", folder)
    assert "whole GPUs, such as T4:1: no two processes share one" in told


def test_choices_of_places_and_markets_leave_the_kinds_as_they_are(folder):
    text = "run: python plain.py\nresources: {accelerators: L4, any_of: [%s]}"
    spec = job(text % "{infra: aws, use_spot: true}, {infra: gcp, use_spot: false}", folder)
    assert (spec.accelerators, spec.market) == (("L4",), "auto")
    assert [note.partition(" = ")[0] for note in spec.notes] == ["resources.any_of.0.infra", "resources.any_of.1.infra"]
    assert job(text % "{infra: aws, use_spot: true}, {use_spot: true}", folder).market == "spot"
    ordered = "run: python plain.py\nresources: {ordered: [{accelerators: L4}, {accelerators: A100, region: eu}]}"
    spec = job(ordered, folder)
    assert spec.accelerators == ("L4", "A100")
    assert any("in no order" in note for note in spec.notes)


def test_restarts_after_errors_are_retries_and_a_strategy_is_the_policys(folder):
    text = "run: python plain.py\nresources: {job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 3}}"
    spec = job(text, folder)
    assert spec.retries.user == 3
    assert any("FAILOVER" in note for note in spec.notes)
    assert "resources.job_recovery" in complaint("run: python plain.py\nresources: {job_recovery: {often: 1}}", folder)


def test_an_image_of_the_system_is_noted_a_container_kept_and_a_machines_refused(folder):
    text = "run: python plain.py\nresources: {image_id: %s}"
    assert job(text % "skypilot:gpu-ubuntu-2004", folder).image == ""
    assert job(text % "skypilot:gpu-ubuntu-2004", folder).notes
    assert job(text % "docker:nvcr.io/nvidia/pytorch:24.07-py3", folder).image == "nvcr.io/nvidia/pytorch:24.07-py3"
    assert job(f"envs: {{TAG: v1}}\n{text % 'ghcr.io/a/b:$TAG'}", folder).image == "ghcr.io/a/b:v1"
    assert "that of a machine" in complaint(text % "ami-0123456789", folder)
    assert "one image" in complaint(text % "{us-east-1: 'docker:a/b', us-west-2: 'docker:c/d'}", folder)
    assert "without the SDK" in complaint(text.replace("plain", "train") % "docker:a/b", folder)


def test_variables_without_a_value_are_given_and_stand_above_those_of_the_file(folder):
    text = "run: python plain.py\nenvs: {A: 1, B: }\nsecrets: {C: }"
    spec = job(text, folder, A="2", B="3", C="4", D="5")
    assert (spec.env, spec.secrets) == ({"A": "2", "B": "3", "D": "5"}, {"C": "4"})
    assert "--env B=" in complaint(text, folder)


# ---------------------------------------------------------------------- once per node


@pytest.mark.parametrize(
    ("text", "per_node", "workers"),
    [
        (SCRIPT + "num_nodes: 2\nresources: {accelerators: 'L4:2'}", 2, 4),
        (SCRIPT + "num_nodes: 2", 1, 2),
        ("run: accelerate launch plain.py\nresources: {accelerators: L4}", 1, 1),
        ("run: python plain.py\nresources: {accelerators: 'L4:2'}", 2, 2),
        ("run: python plain.py > log\nsetup: make", 1, 1),
        ("run: python plain.py > log", 0, 1),
        ("run: python plain.py\nnum_nodes: 3", 0, 3),
        ("run: torchrun plain.py\nresources: {accelerators: 'L4:2'}", 0, 2),
        ("run: python train.py\nresources: {accelerators: 'L4:2'}", 0, 2),
        ("run: python plain.py\nelastic: {workers: 4}\nresources: {accelerators: 'L4:2'}", 0, 4),
    ],
)
def test_a_command_that_is_no_worker_runs_once_per_node(folder, text, per_node, workers):
    spec = job(text, folder)
    assert (spec.per_node, spec.min_workers, spec.max_workers) == (per_node, workers, workers)


def test_a_range_of_gpus_is_of_workers_as_ever(folder):
    spec = job("run: python plain.py\nresources: {accelerators: 'A100:1..8'}", folder)
    assert (spec.per_node, spec.min_workers, spec.max_workers) == (0, 1, 8)


def test_a_script_for_a_node_goes_on_after_a_command_that_fails_as_in_skypilot(folder):
    assert job(SCRIPT, folder).argv[:2] == ("bash", "-c")
    assert job("run: python plain.py > log", folder).argv[:3] == ("bash", "-euo", "pipefail")


@pytest.mark.parametrize(
    "guard",
    [
        "",
        "case $- in\n    *i*) ;;\n      *) return;;\nesac\n",
        '[ -z "$PS1" ] && return\n',
        "[[ $- != *i* ]] && return\n",
    ],
)
def test_it_has_what_the_setup_left_in_bashrc_whoever_that_is_for(folder, guard):
    import subprocess

    text = "setup: echo 'export FOUND=it' >> ~/.bashrc\nrun: |\n  false\n  echo has $FOUND\n"
    spec, env = job(text, folder), {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    (folder / ".bashrc").write_text(f"{guard}exit_code=3\necho hello\nfalse\n")
    subprocess.run(["bash", "-euo", "pipefail", "-c", spec.setup], env=env, check=True)
    assert subprocess.run(spec.argv, env=env, check=True, capture_output=True, text=True).stdout == "has it\n"
    (folder / ".bashrc").unlink()
    assert subprocess.run(spec.argv, env=env, check=True, capture_output=True, text=True).stdout == "has\n"


def test_the_setup_of_such_a_script_goes_on_too_and_fails_by_its_last_command(folder):
    import subprocess

    def ended(text):
        setup = job(f"{SCRIPT}setup: |\n  {text}", folder).setup
        return subprocess.run(["bash", "-euo", "pipefail", "-c", setup], check=False).returncode

    assert (ended("false; echo $NOT_SET | true"), ended("true; false")) == (0, 1)
    assert job("run: python plain.py\nsetup: make", folder).setup == "make"


def test_a_script_that_setup_or_mounts_may_bring_need_not_be_there(folder):
    assert "there is no gone.py" in complaint("run: python gone.py", folder)
    assert job("run: python gone.py\nsetup: git clone x .", folder).argv == ("python", "gone.py")


# ---------------------------------------------------------------------- several documents, folders


def test_a_name_before_the_only_job_is_its_name(folder):
    assert job("name: Pipe_line\n---\nrun: python plain.py\n---\n", folder).name == "Pipe_line"
    assert job("name: a\n---\nname: b\nrun: python plain.py", folder).name == "b"


def test_several_jobs_in_a_file_are_refused_with_how_skypilot_runs_them(folder):
    two = "run: python plain.py\n---\nrun: python plain.py"
    assert "holds 2 jobs, which SkyPilot runs one after the other" in complaint(two, folder)
    assert "job.yaml, line 3" in complaint(two, folder)
    assert "at the same time" in complaint(f"name: x\nexecution: parallel\n---\n{two}", folder)
    alone = complaint("execution: parallel\n---\nrun: python plain.py", folder)
    assert "execution is not supported" in alone


def test_a_folder_that_is_not_beside_the_file_is_looked_for_where_one_is_and_noted(folder, monkeypatch):
    (folder / "code").mkdir()
    (folder / "deep").mkdir()
    monkeypatch.chdir(folder)
    spec = job_from_text("run: 'true'\nworkdir: code", source="job.yaml", base=folder / "deep")
    assert spec.cwd == str(folder / "code")
    assert "none beside the file" in spec.notes[0]
    told = complaint("run: 'true'\nworkdir: {url: 'https://example.org/a.git', ref: main}", folder)
    assert "clone a repository in setup" in told


def test_empty_keys_say_nothing(folder):
    spec = job("run: python plain.py\nsetup:\nfile_mounts:\nenvs:\nresources:\nnum_nodes:\nworkdir:", folder)
    assert (spec.setup, spec.mounts, spec.notes, spec.cwd) == ("", {}, (), str(folder))
