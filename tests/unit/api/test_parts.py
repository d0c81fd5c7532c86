"""Files of a job on another machine than its controller: sent by content, once, and refused where they are damaged."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace

import pytest

from sublet.api import sending
from sublet.errors import BadInput, Refused
from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.file_sync.content import Content, Fetch, digest_of
from sublet.runtime.jobs.file import job_from_command
from tests.rigs.in_memory_api import served


@pytest.fixture
def there(tmp_path):
    with served(tmp_path / "there") as found:
        yield found


def a_job(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return replace(job_from_command(["true"], name="echo"), cwd=str(folder))


def test_a_folder_is_sent_once_and_then_only_what_has_changed(there, tmp_path):
    texts = {"train.py": "print(1)", "lib/a.py": "a" * 300_000, ".gitignore": "big", "big": "x" * 999}
    spec = a_job(tmp_path / "work", texts)
    sent, bytes_sent = sending.send_files(there.client, spec, tmp_path / "laptop")
    here = Fetch(there.api.parts._content, sent.code)
    assert here.here
    assert sorted(entry.path for entry in here.entries) == [".gitignore", "lib/a.py", "train.py"]
    assert bytes_sent > 0
    assert sending.send_files(there.client, spec, tmp_path / "laptop")[0] == sent
    (tmp_path / "work" / "train.py").write_text("print(2)", encoding="utf-8")
    changed, few = sending.send_files(there.client, spec, tmp_path / "laptop")
    assert changed.code != sent.code
    assert 0 < few < bytes_sent  # one file, and the manifest


def test_files_that_have_not_changed_cost_less_than_a_kilobyte_however_many_they_are(there, tmp_path):
    spec = a_job(tmp_path / "work", {f"{n}.txt": f"{n} of many" for n in range(60)})
    _, first = sending.send_files(there.client, spec, tmp_path / "laptop")
    before = there.client.meter.sent
    _, again = sending.send_files(there.client, spec, tmp_path / "laptop")
    assert again == there.client.meter.sent - before
    assert 0 < again < 1000 < first


def test_a_part_that_was_lost_there_is_sent_again_though_the_rest_is_there(there, tmp_path):
    spec = a_job(tmp_path / "work", {"train.py": "print(1)", "a.txt": "a"})
    sent, _ = sending.send_files(there.client, spec, tmp_path / "laptop")
    content = there.api.parts._content
    (content.folder / digest_of(b"print(1)")).unlink()
    assert content.data(digest_of(b"print(1)")) is None
    sending.send_files(there.client, spec, tmp_path / "laptop")
    assert Fetch(content, sent.code).here


def test_more_than_one_request_holds_travels_in_several(there, tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.api.limits.MOST_ASKED", 2)
    monkeypatch.setattr("sublet.api.limits.MOST_BYTES", 100)
    spec = a_job(tmp_path / "work", {f"{n}.txt": str(n) * 80 for n in range(5)})
    sent, _ = sending.send_files(there.client, spec, tmp_path / "laptop")
    assert Fetch(there.api.parts._content, sent.code).here


def test_what_is_not_what_its_name_says_is_refused(there, tmp_path):
    packed = Content(tmp_path / "other")
    good, bad = packed.add(b"good"), digest_of(b"bad")
    text = base64.b64encode(packed.packed(good)).decode()
    with pytest.raises(Refused, match="something else"):
        there.client.post("/v1/parts", {"parts": {bad: text}})
    with pytest.raises(Refused, match="base64"):
        there.client.post("/v1/parts", {"parts": {good: "%"}})
    for name in ("../../x", "A" * 64, ""):
        with pytest.raises(Refused):
            there.client.post("/v1/parts", {"parts": {name: text}})
    assert there.client.post("/v1/parts/lacking", {"digests": [good, bad, good]})["lacking"] == [good, bad]


def test_a_job_that_comes_with_its_files_keeps_them_and_is_refused_where_one_is_missing(tmp_path):
    carrier = FileSync(tmp_path, files=FILES, rng=RNG, engine=None, logs=None, elsewhere=True)
    spec = a_job(tmp_path / "work", {"train.py": "print(1)"})
    packed = asyncio.run(carrier.pack(spec))
    far = replace(packed, cwd="/of/a/laptop")
    assert asyncio.run(carrier.pack(far)) == far
    (tmp_path / "content" / digest_of(b"print(1)")).unlink()
    again = FileSync(tmp_path, files=FILES, rng=RNG, engine=None, logs=None, elsewhere=True)
    with pytest.raises(BadInput, match="not all of them"):
        asyncio.run(again.pack(far))
