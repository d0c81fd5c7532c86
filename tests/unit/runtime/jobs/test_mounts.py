"""What a job brings to its nodes: files, buckets, and a setup that nobody runs without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.jobs.file import job_from_text
from sublet.runtime.jobs.spec import JobSpec, spec_from_json, spec_to_json

PLAIN = JobSpec(name="x", argv=("true",), cwd="/")


def job(text, folder, **environment):
    return job_from_text(f"run: 'true'\n{text}", source="job.yaml", base=folder, environment=environment)


def test_a_path_is_relative_to_the_file_and_else_to_where_one_is(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").write_text("1")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path)
    spec = job("file_mounts: {/a: a.txt, ~/b: b}", tmp_path / "here")
    assert spec.mounts == {"/a": str(tmp_path / "here" / "a.txt"), "~/b": str(tmp_path / "b")}
    assert (spec.kept_mounts, spec.notes) == ((), ())


def test_a_bucket_is_a_uri_and_what_is_written_into_a_mounted_one_goes_back(tmp_path):
    text = """
file_mounts:
  /named: {name: $WHICH}
  /theirs: {name: data, store: '${STORE}', mode: COPY}
  /given: {source: s3://public/set, mode: mount_cached}
envs: {WHICH: mine, STORE: GCS}
"""
    spec = job(text, tmp_path)
    assert spec.mounts == {"/named": "s3://mine", "/theirs": "gs://data", "/given": "s3://public/set"}
    assert spec.kept_mounts == ("/named", "/given")
    assert spec.new_mounts == ("/named",), "a URI names a bucket that is there"
    assert spec.notes == ("file_mounts./named: no store is named, so it is the bucket s3://mine",)


def test_files_of_this_machine_in_a_bucket_are_brought_and_what_stays_behind_is_noted(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    spec = job("file_mounts: {/both/: {source: [one, two], name: b, persistent: false}}", tmp_path)
    assert spec.mounts == {"/both/one": str(tmp_path / "one"), "/both/two": str(tmp_path / "two")}
    assert spec.kept_mounts == ()
    assert sorted(note.partition(": ")[2] for note in set(spec.notes)) == [
        "its files are brought to the node; what is written there stays on the node",
        "no bucket is deleted, though persistent is false",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file_mounts: {/a: nosuch}", "file_mounts./a = 'nosuch' is not allowed; it must be a file or folder"),
        ("file_mounts: {/a: {nam: b}}", "file_mounts./a.nam is no key of a job file; did you mean name?"),
        ("file_mounts: {/a: {mode: COPY}}", "a source, or the name of a bucket"),
        ("file_mounts: {/a: {name: b, mode: FUSE}}", "one of COPY, MOUNT, MOUNT_CACHED"),
        ("file_mounts: {/a: 's3://$GONE/x'}", "$GONE is none"),
        ("file_mounts: {/a/../b: s3://x}", "without '..'"),
        ("file_mounts: {/a: 3}", "a group of keys"),
        ("setup: [pip]", "setup = ['pip'] is not allowed"),
    ],
)
def test_what_cannot_be_brought_is_refused_by_its_path(tmp_path, text, words):
    with pytest.raises(BadInput) as caught:
        job(text, tmp_path)
    assert words in str(caught.value)
    assert caught.value.line == 2


def test_a_stored_job_of_before_loads_and_one_of_today_survives_the_wire():
    spec = replace(
        PLAIN,
        sdk=False,
        setup="make",
        mounts={"/a": "s3://b"},
        kept_mounts=("/a",),
        notes=("n",),
        per_node=4,
        min_workers=8,
        max_workers=8,
    )
    facts = spec_to_json(spec, secrets=True)
    assert spec_from_json(facts) == spec
    for name in ("setup", "mounts", "kept_mounts", "notes", "per_node"):
        del facts[name]
    assert spec_from_json(facts) == replace(spec, setup="", mounts={}, kept_mounts=(), notes=(), per_node=0)


@pytest.mark.parametrize(
    "facts",
    [
        {"mounts": {"/a": "relative"}},
        {"mounts": {"": "s3://b"}},
        {"mounts": {"/a": "s3://"}},
        {"mounts": {"/a": "/etc"}, "kept_mounts": ["/a"]},
        {"kept_mounts": ["/a"]},
        {"mounts": {f"/{n}": "s3://b" for n in range(300)}},
        {"setup": "x" * 200_000},
        {"setup": "a\0b"},
        {"notes": ["n"] * 101},
        {"per_node": -1, "sdk": False},
        {"per_node": 1},
        {"per_node": 2, "sdk": False, "max_workers": 3, "min_workers": 3},
        {"per_node": 2, "sdk": False, "max_workers": 4},
    ],
)
def test_what_no_node_could_be_given_is_refused_over_the_api_too(facts):
    with pytest.raises(InvalidValue):
        spec_from_json({"name": "x", "argv": ["true"], "cwd": "/", **facts})
