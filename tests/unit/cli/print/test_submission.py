"""What is said of a job that was submitted."""

from __future__ import annotations

from sublet.cli.print.submission import print_submitted
from sublet.runtime.jobs.spec import JobSpec


def test_what_the_file_asks_for_and_the_job_need_not_have_is_said(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    spec = JobSpec(name="x", argv=("true",), cwd="/", notes=("resources.cpus = 8: it has what the node has",))
    print_submitted({"job_id": "x-1", "name": "x"}, spec)
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("job x-1 (x) is submitted")
    assert told[1].startswith("python: ")
    assert told[2] == "- resources.cpus = 8: it has what the node has"


def test_what_was_sent_for_its_files_is_said_where_the_controller_is_elsewhere(capsys):
    spec = JobSpec(name="x", argv=("true",), cwd="/")
    print_submitted({"job_id": "x-1", "name": "x", "files_sent_bytes": 12345}, spec)
    assert "sent for its files: 12,345 bytes" in capsys.readouterr().out.splitlines()
    print_submitted({"job_id": "x-1", "name": "x"}, spec)
    assert "sent" not in capsys.readouterr().out
