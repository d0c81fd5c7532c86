"""Secrets in what is told of a job: none of their lines, whoever quotes them."""

from __future__ import annotations

import socket

from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.worker import LAST_BYTES, AgentWorker
from sublet.runtime.controller.memory.records import JobRecord
from sublet.runtime.group.build import build_group
from sublet.runtime.secret_files import hidden, what_to_hide
from sublet.wire.messages import StartWorker
from tests.rigs.story import a_spec

KEY = "-----BEGIN KEY-----\nMIISUPERSECRETLINEONE\nshort\n-----END KEY-----\n"


def test_a_job_tells_no_line_of_its_secrets():
    spec = a_spec(secrets={"KEY": KEY, "EMPTY": ""})
    record = JobRecord("j-1", spec, build_group("j-1", spec, log_of=str, env=dict), 0.0)
    assert record.hide("last: MIISUPERSECRETLINEONE, a short word") == "last: ***, a short word"
    assert record.hide(f"all: {KEY}.") == "all: ***."


def test_a_secret_that_has_another_within_is_hidden_whole():
    assert hidden("as abcd is", ["abc", "abcd"]) == "as *** is"


def test_a_secret_that_cannot_be_written_is_no_reason_to_fail():
    assert hidden("as \ud800abc is", ["\ud800abc"]) == "as *** is"
    assert len(what_to_hide(["\ud800abc"])) == 1


def test_last_words_do_not_begin_amid_a_line(tmp_path):
    log = tmp_path / "log"
    rest = "the end\n"
    log.write_text("MIISUPERSECRETLINEONE\n" + "x" * (LAST_BYTES - len(rest) - 8) + "\n" + rest)
    order = StartWorker(worker_id="j-1.1.0", job_id="j-1", argv=("true",), env={}, cwd="/", log=str(log))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = AgentWorker(order, 1, ours, 0).last_words(DISK)
    assert "ONE" not in words
    assert words.endswith("x\nthe end")
