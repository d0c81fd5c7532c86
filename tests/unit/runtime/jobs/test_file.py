"""Job files: what is written becomes a job, and what is wrong is told with its place."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sublet.errors import BadInput, InvalidValue, SubletError
from sublet.runtime.jobs.file import job_from_command, job_from_file, job_from_text, json_schema, name_from
from sublet.runtime.jobs.spec import Retries, spec_from_json, spec_to_json
from tests.rigs.job_file import WHOLE

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SURROUNDINGS = {"TOKEN": "hush", "FROM_ME": "mine"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("from sublet import train\n")
    (tmp_path / "plain.py").write_text("import torch.distributed\n")
    return tmp_path


def job(text, folder, **environment):
    return job_from_text(text, source="job.yaml", base=folder, environment=environment, now=NOW)


def complaint(text, folder, **environment):
    with pytest.raises(BadInput) as caught:
        job(text, folder, **environment)
    return caught.value


def test_every_key_reaches_the_job(folder):
    spec = job(WHOLE, folder, **SURROUNDINGS)
    assert spec.name == "pretrain-small"
    assert spec.argv == ("python", "train.py", "--lr", "0.1")
    assert spec.cwd == str(folder)
    assert spec.setup == "pip install -r needs.txt"
    assert spec.mounts == {"/data": "s3://corpus/small", "/out": "gs://results"}
    assert spec.kept_mounts == ("/out",)
    assert spec.env == {"LEVEL": "010", "ANSWER": "yes", "FROM_ME": "mine"}
    assert spec.secrets == {"TOKEN": "hush"}
    assert spec.sdk
    assert (spec.min_workers, spec.max_workers, spec.sizes) == (2, 16, (2, 4, 8, 16))
    assert (spec.on_node_loss, spec.replace_s) == ("replace", 300.0)
    assert (spec.accelerators, spec.market) == (("A100", "L4"), "spot")
    assert (spec.work, spec.samples_per_s, spec.restart_s) == (512_000.0, 100.0, 0.5)
    assert (spec.checkpoint_dir, spec.checkpoint_every_s, spec.checkpoint_keep) == (str(folder / "ck"), 600.0, 5)
    assert spec.retries == Retries(preemption=None, infra=4, user=0)
    assert (spec.purse_usd, spec.deadline_s, spec.grace_s, spec.weight) == (120.0, 86_400.0, 90.0, 2.0)


@pytest.mark.parametrize("uri", ["s3://bucket/runs/1", "gs://bucket", "az://container/runs"])
def test_checkpoints_may_lie_in_a_bucket_and_nobody_is_asked_about_it(folder, uri):
    pytest.importorskip("obstore")
    spec = job(f"run: python train.py\ncheckpoint: {{uri: {uri}/}}", folder)
    assert spec.checkpoint_dir == uri
    copied = job(f"run: python train.py\ncheckpoint: {{copy: {uri}/}}", folder)
    assert (copied.checkpoint_dir, copied.checkpoint_copy) == ("", uri)
    assert spec_from_json(spec_to_json(spec, secrets=True)) == spec


def test_a_secret_is_never_part_of_how_a_job_prints(folder):
    assert "hush" not in repr(job(WHOLE, folder, **SURROUNDINGS))


def test_what_a_job_does_when_it_loses_a_node_is_one_of_four(folder):
    text = "run: python plain.py\nelastic: {workers: 2, on_node_loss: %s}"
    for choice in ("continue", "replace", "restart", "fail"):
        spec = job(text % choice, folder)
        assert (spec.on_node_loss, spec.replace_s) == (choice, 600.0)
        assert spec_from_json(spec_to_json(spec, secrets=True)) == spec
    assert "elastic.on_node_loss" in str(complaint(text % "panic", folder))
    listed = "elastic.on_node_loss = ['fail'] is not allowed; it must be 'continue', 'replace', 'restart' or 'fail'"
    assert listed in str(complaint(text % "[fail]", folder))
    alone = "elastic.replace_within = '5m' is not allowed; it must be beside on_node_loss: replace, or left out"
    assert alone in str(complaint(text % "fail, replace_within: 5m", folder))
    assert "elastic.replace_within" in str(complaint(text % "replace, replace_within: 100ms", folder))
    facts = spec_to_json(spec, secrets=True) | {"on_node_loss": "panic"}
    with pytest.raises(InvalidValue, match="on_node_loss"):
        spec_from_json(facts)


def test_one_line_is_enough(folder):
    spec = job("run: python plain.py", folder)
    assert (spec.name, spec.min_workers, spec.max_workers, spec.market) == ("job", 1, 1, "auto")
    assert not spec.sdk


def test_a_skypilot_file_means_the_same_here(folder):
    text = "num_nodes: 2\nresources: {accelerators: 'A100:4', use_spot: true}\nrun: python plain.py"
    spec = job(text, folder)
    assert (spec.min_workers, spec.max_workers, spec.accelerators, spec.market) == (8, 8, ("A100",), "spot")
    assert spec.per_node == 4


def test_a_core_on_demand_is_as_many_workers_as_the_file_says(folder):
    spec = job("run: python train.py\nelastic: {workers: 2..8}\nresources: {spot: auto, min_on_demand: 2}", folder)
    assert (spec.market, spec.min_on_demand) == ("auto", 2)
    assert spec_from_json(spec_to_json(spec, secrets=True)) == spec
    assert json_schema()["$defs"]["Resources"]["properties"]["min_on_demand"]["minimum"] == 0


def test_spot_may_be_said_as_a_flag(folder):
    for flag, market in {"true": "spot", "false": "on-demand", "auto": "auto"}.items():
        assert job(f"run: python train.py\nresources: {{spot: {flag}}}", folder).market == market


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("run: python train.py\nwrkdir: .", 2, ("wrkdir", "did you mean workdir?")),
        ("run: python train.py\nelastic:\n  worker: 2", 3, ("elastic.worker", "did you mean workers?")),
        ("run: python train.py\nelastic:\n  workers: 9..2", 3, ("elastic.workers = '9..2'", "smaller number first")),
        ("run: python train.py\nelastic: {workers: 0}", 2, ("elastic.workers = 0", "from 1 to")),
        ("run: python train.py\nelastic: {workers: 2..4, sizes: [8]}", 2, ("elastic.sizes = 8", "from 2 to 4")),
        ("run: python train.py\nname: ../Big", 2, ("name = '../Big'", "letters, digits, hyphens")),
        ("run: python train.py\nbudget: -3", 2, ("budget.total = -3", "dollars above 0")),
        ("run: python train.py\nbudget: {total: 3 EUR}", 2, ("budget.total = '3 EUR'", "120 USD")),
        ("run: python train.py\ndeadline: 90", 2, ("deadline = 90", "a moment in the future")),
        ("run: python train.py\ndeadline: 2020-01-01", 2, ("deadline", "in the future")),
        ("run: python train.py\nstop_duration: 30", 2, ("stop_duration = 30", "say the unit")),
        ("run: python train.py\nretry: {user: often}", 2, ("retry.user = 'often'", "unlimited")),
        ("run: python train.py\ncheckpoint: {keep: 1}", 2, ("checkpoint.keep = 1", "greater than or equal to 2")),
        ("run: python train.py\ncheckpoint: {uri: ftp://b/x}", 2, ("checkpoint.uri", "s3://bucket/prefix")),
        ("run: python train.py\ncheckpoint: {uri: s3:///x}", 2, ("checkpoint.uri", "s3://bucket/prefix")),
        ("run: python plain.py\ncheckpoint: {uri: s3://b/x}", 2, ("checkpoint.uri", "without the SDK")),
        ("run: python train.py\ncheckpoint: {copy: /a/folder}", 2, ("checkpoint.copy", "s3://")),
        ("run: python train.py\ncheckpoint: {copy: s3:///x}", 2, ("checkpoint.copy", "s3://bucket/prefix")),
        ("run: python train.py\ncheckpoint: {uri: s3://b/x, copy: s3://b/y}", 2, ("checkpoint.copy", "already")),
        ("run: python plain.py\ncheckpoint: {copy: s3://b/x}", 2, ("checkpoint.copy", "of the SDK")),
        ("run: python train.py\nresources: {use_spot: maybe}", 2, ("resources.use_spot = 'maybe'", "boolean")),
        ("run: python train.py\nresources: {use_spot: true, spot: auto}", 2, ("resources", "not both")),
        ("run: python train.py\nresources: {min_on_demand: 2}", 2, ("resources.min_on_demand = 2", "elastic.workers")),
        ("run: python train.py\nresources: {min_on_demand: 1, spot: true}", 2, ("min_on_demand = 1", "on spot only")),
        ("run: python train.py\ntraining: {target: {steps: 5}}", 2, ("training", "global_batch beside")),
        ("run: python train.py\nworkdir: nosuch", 2, ("workdir = 'nosuch'", "exists")),
        ("run: python nosuch.py", 1, ("nosuch.py", "there is no nosuch.py in")),
        ("run: |\n  cd x\n  torchrun plain.py\nelastic: {workers: 2}", 1, ("run", "Sublet starts the workers itself")),
        ("run: |\n  cd x\n  torchrun train.py", 1, ("run", "Sublet starts the workers itself")),
        ("run: 'python \"train.py'", 1, ("run", "quotes closed")),
        ("name: x", 1, ("run is missing",)),
        ("run: python train.py\nsecrets: {NOT_SET: }", 2, ("secrets.NOT_SET", "export NOT_SET=")),
        ("run: python train.py\nenvs: {1x: 2}", 2, ("envs.1x", "letters, digits")),
        ("run: python train.py\nrun: python train.py", 2, ("run is there twice",)),
        ("run: [python", 1, ("not YAML",)),
        ("run: python train.py\n\tname: x", 2, ("not YAML",)),
        ("- a\n- b", 1, ("'key: value'",)),
        ("", None, ("it is empty",)),
        ("a: &x 1\n<<: {b: 1}", 2, ("merge",)),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_line_field_value_and_range(folder, text, line, words):
    error = complaint(text, folder)
    assert error.line == line
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize(
    ("text", "key", "advice"),
    [
        ("service: {replicas: 2}", "service", "does not serve"),
        ("volumes: {a: b}", "volumes", "file_mounts"),
        ("execution: parallel", "execution", "one by one"),
        ("config: {kubernetes: {enable_docker: true}}", "config", "no job has a docker of its own"),
        ("resources: {max_hourly_cost: 3}", "resources.max_hourly_cost", "sublet budget set"),
        ("resources: {priority: 3}", "resources.priority", "use weight"),
        ("budget: {total: 5, max_burn: 1 USD/h}", "budget.max_burn", "sublet budget set"),
        ("retry: {on_events: [error]}", "retry.on_events", "use preemption"),
        ("max_duration: 3h", "max_duration", "use deadline"),
    ],
)
def test_a_key_of_other_tools_is_refused_as_that_and_not_as_a_typo(folder, text, key, advice):
    error = complaint(f"run: python train.py\n{text}", folder)
    assert f"{key} is not supported by Sublet" in str(error)
    assert advice in str(error)
    assert error.line == 2


def test_several_mistakes_are_told_at_once_in_the_order_of_the_file(folder):
    error = complaint("name: A b\nrun: python train.py\nbudget: no\nelastic: {workers: many}\nzzz: 1", folder)
    lines = str(error).splitlines()
    assert lines[0].startswith("job.yaml, line 1: name")
    assert [line.split(":")[0].strip() for line in lines[1:4]] == ["also line 3", "also line 4", "also line 5"]
    assert lines[-1] == "  next: sublet schema shows every key"


def test_all_mistakes_of_a_file_are_told_at_once_whatever_finds_them(folder):
    text = """
run: python gone.py
name: a/b
service: 8080
workdir: .
volumes: {a: b}
elastic: {worker: 2}
checkpoint: {uri: ftp://b/x, keep: 1}
deadline: 2020-01-01
secrets: {NOT_SET: , NEITHER: }
budget: -3
name: again
resources: {use_spot: true, spot: auto}
"""
    error = str(complaint(text, folder))
    lines = error.splitlines()
    told = [int(line.partition("line ")[2].partition(":")[0]) for line in lines[:-1]]
    assert told == [2, 3, 4, 6, 7, 8, 8, 9, 10, 10, 11, 12, 13, 7]
    for words in (
        "there is no gone.py",
        "name = 'a/b' is not allowed; it must be",
        "service is not supported by Sublet: leave it out",
        "volumes is not supported",
        "elastic.worker is no key of a job file; did you mean workers?",
        "checkpoint.uri = 'ftp://b/x'",
        "checkpoint.keep = 1",
        "deadline = '2020-01-01'",
        "export NOT_SET=",
        "export NEITHER=",
        "budget.total = -3",
        "name is there twice: keep one of them",
        "either use_spot or spot, not both",
        "elastic.workers is missing",
    ):
        assert words in error, words
    assert lines[-1] == "  next: sublet schema shows every key"


def test_the_value_of_a_secret_is_not_in_an_error(folder):
    error = complaint("run: python train.py\nsecrets: {TOKEN: [hush, hush]}\nenvs: {A: [hush]}", folder)
    assert "TOKEN" in str(error)
    assert "hush" not in str(error)


def test_a_small_file_cannot_become_a_huge_one(folder):
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(8)
    )
    assert "too many values" in str(complaint(bomb, folder))
    assert isinstance(complaint("a: &a [*a]", folder), BadInput)


@pytest.mark.parametrize(
    ("argv", "sdk"),
    [
        (["python", "train.py"], True),
        (["python3", "-u", "-X", "dev", "train.py", "--x"], True),
        (["torchrun", "--standalone", "--nproc_per_node=2", "train.py"], True),
        (["python", "-m", "train"], True),
        (["python", "-c", "import sublet.train"], True),
        (["python", "beside.py"], True),
        (["python", "plain.py"], False),
        (["python", "-c", "print('sublet')"], False),
        (["true"], False),
        (["python", "broken.py"], False),
        (["python", "own_loop.py"], False),
        (["python", "renamed.py"], False),
        (["python", "both.py"], True),
    ],
)
def test_the_script_tells_whether_it_uses_the_sdk(folder, argv, sdk):
    (folder / "beside.py").write_text("import train\n")
    (folder / "broken.py").write_text("import sublet\ndef (:\n")
    own_loop = "from sublet import train\nck = train.checkpointed(model=model)\n"  # it is stopped and started
    (folder / "own_loop.py").write_text(own_loop)
    (folder / "renamed.py").write_text(
        "from sublet import train as elastic\ndef train():\n    ck = elastic.checkpointed(model=model)\n"
    )
    (folder / "both.py").write_text(own_loop + "s = train.session(model, optimizer, data)\n")
    assert job_from_command(argv, cwd=str(folder)).sdk is sdk
    assert job_from_command(argv, cwd=str(folder), sdk=not sdk).sdk is not sdk


def test_a_command_has_a_name_and_its_script_must_exist(folder):
    spec = job_from_command(["torchrun", "-m", "train"], cwd=str(folder), workers=(2, 4))
    assert (spec.name, spec.argv, spec.min_workers, spec.max_workers) == ("train", ("python", "-m", "train"), 2, 4)
    with pytest.raises(InvalidValue, match=r"there is no gone\.py"):
        job_from_command(["python", "gone.py"], cwd=str(folder))
    with pytest.raises(InvalidValue, match="a command"):
        job_from_command([], cwd=str(folder))


def test_what_needs_a_shell_gets_one(folder):
    assert job("run: python plain.py > out.txt", folder).argv[:2] == ("bash", "-euo")
    assert job("run: |\n  export A=1\n  python train.py", folder).sdk


@pytest.mark.parametrize(("text", "name"), [("My Job_2", "my-job-2"), ("---", "job"), ("a" * 80, "a" * 63)])
def test_names_are_made_of_what_is_there(text, name):
    assert name_from(text) == name


def test_files_that_cannot_be_read_are_errors_of_the_tree(tmp_path):
    (tmp_path / "raw.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "raw.yaml", Path("x" * 5000)):
        with pytest.raises(SubletError):
            job_from_file(path)


def test_the_schema_knows_every_key_of_the_whole_file():
    schema = json_schema()
    assert schema["additionalProperties"] is False
    assert {"run", "elastic", "training", "budget", "retry", "secrets"} <= set(schema["properties"])
    assert schema["required"] == ["run"]
    assert "2..16" in json.dumps(schema)


ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_job(path):
    assert job_from_file(path).name == path.stem


def test_there_are_examples_with_and_without_the_sdk():
    assert {job_from_file(path).sdk for path in EXAMPLES} == {True, False}


def test_the_reference_names_every_key():
    page = (ROOT / "docs" / "reference" / "job-files.md").read_text()
    schema = json_schema()
    groups = [schema, *schema["$defs"].values()]
    keys = {key for group in groups for key in group.get("properties", {})}
    assert len(keys) > 30
    assert [key for key in sorted(keys) if f"`{key}" not in page and f".{key}`" not in page] == []


def test_all_that_is_out_of_bounds_is_told_at_once_by_the_keys_and_lines_of_the_file(tmp_path):
    text = (
        "name: a..b\nrun: 'true'\nelastic: {workers: 1, restart: 90d}\nstop_duration: 90d\ntraining: {hang: 1ms}\n"
        "retry: {user: 10000000, infra: 20000000}\nbudget: 5000000000\ndeadline: 9999-12-31T23:59Z\n"
        "checkpoint: {interval: 100000d}\n"
    )
    with pytest.raises(BadInput) as error:
        job_from_text(text, source="job", base=tmp_path)
    told = str(error.value).splitlines()
    assert [line.partition(" = ")[0].removeprefix("  also ") for line in told[:-1]] == [
        "job, line 1: name",
        "line 3: elastic.restart",
        "line 4: stop_duration",
        "line 5: training.hang",
        "line 6: retry.infra",
        "line 6: retry.user",
        "line 7: budget.total",
        "line 8: deadline",
        "line 9: checkpoint.interval",
    ]
    assert (
        "elastic.restart = '90d' is not allowed; it must be a duration from 0s to 1000000s (about 12 days)" in told[1]
    )
    assert "5000000000 is not" in told[6]
    assert "dollars from 0.000001 to 1,000,000,000" in told[6]
    assert "9999-12-31" in told[7]


def test_an_empty_command_is_refused_in_our_words(tmp_path):
    with pytest.raises(BadInput, match="run = '' is not allowed; it must be a command"):
        job_from_text('run: ""\n', source="job", base=tmp_path)


def test_a_key_that_is_wrong_is_not_missing_as_well(folder):
    error = complaint("run: python plain.py\nelastic: {workers: few}", folder)
    assert "elastic.workers = 'few' is not allowed" in str(error)
    assert "missing" not in str(error)


@pytest.mark.parametrize(
    ("parallel", "stages"),
    [("{}", 1), ("{stages: 1}", 1), ("{stages: 4}", 4), ("{stages: auto}", 0), ("{stages: auto, shards: off}", 0)],
)
def test_a_job_says_into_how_many_stages_its_model_is_cut(tmp_path, parallel, stages):
    text = f"name: a\nrun: 'true'\ntraining: {{sdk: true}}\nelastic: {{workers: 1..8}}\nparallel: {parallel}\n"
    job = job_from_text(text, source="job", base=tmp_path)
    assert (job.stages, job.cut) == (stages, "" if stages == 1 else "stages")


@pytest.mark.parametrize(
    ("parallel", "shards"), [("{}", "auto"), ("{shards: on}", "on"), ("{shards: off}", "off"), ("{shards: 'on'}", "on")]
)
def test_a_job_says_whether_its_optimizer_state_is_in_ranges(tmp_path, parallel, shards):
    text = f"name: a\nrun: 'true'\ntraining: {{sdk: true}}\nelastic: {{workers: 1..8}}\nparallel: {parallel}\n"
    job = job_from_text(text, source="job", base=tmp_path)
    assert (job.shards, job.cut) == (shards, "")


@pytest.mark.parametrize(
    ("parallel", "sdk", "told"),
    [
        ("{stages: 2, shards: on}", "true", "with stages or with shards: on, not both"),
        ("{shards: on}", "false", "left out where the script opens no session"),
        ("{shards: perhaps}", "true", "parallel.shards"),
        ("{stages: 9}", "true", "parallel.stages = 9 is not allowed; it must be auto, or a whole number from 1 to 8"),
        ("{stages: 0}", "true", "parallel.stages"),
        ("{stages: two}", "true", "it must be auto, or a whole number from 1 to 8"),
        ("{stages: 6}", "true", "at most 4, a worker for each"),
        ("{stages: auto}", "false", "left out where the script opens no session"),
    ],
)
def test_a_cut_that_cannot_be_is_refused_in_words(tmp_path, parallel, sdk, told):
    text = f"name: a\nrun: 'true'\ntraining: {{sdk: {sdk}}}\nelastic: {{workers: 1..4}}\nparallel: {parallel}\n"
    with pytest.raises(BadInput, match=re.escape(told)):
        job_from_text(text, source="job", base=tmp_path)


def test_sizes_none_of_which_is_whole_copies_are_refused_beside_stages(tmp_path):
    text = "name: a\nrun: 'true'\ntraining: {{sdk: true}}\nparallel: {{stages: 3}}\n"
    text += "elastic: {{workers: 4..8, sizes: {sizes}}}\n"
    with pytest.raises(
        BadInput, match=re.escape("elastic.sizes = '4, 8' is not allowed; it must be whole copies of 3 parts")
    ):
        job_from_text(text.format(sizes=[4, 8]), source="job", base=tmp_path)
    job = job_from_text(text.format(sizes=[4, 6, 8]), source="job", base=tmp_path)
    assert job.least_workers == 6
