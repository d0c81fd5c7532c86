"""Opening a URI: what is refused before anybody is asked, and what a store's own errors become."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("obstore")

from obstore.store import MemoryStore

from sublet.errors import InvalidValue, MissingExtra
from sublet.machine import remote
from sublet.machine.objects import Overtaken, StoreFailed, Torn
from sublet.machine.remote import RemoteObjects, check_uri, is_remote, open_uri
from tests.rigs import moto_bucket


@pytest.fixture
def objects():
    return RemoteObjects("memory://here", MemoryStore())


@pytest.mark.parametrize(
    ("place", "remotely"),
    [("s3://b/p", True), ("gs://b", True), ("ftp://b/p", True), ("/a/b", False), ("a", False), ("file:///a", False)],
)
def test_a_place_is_remote_if_it_has_a_scheme_that_is_no_file(place, remotely):
    assert is_remote(place) is remotely


@pytest.mark.parametrize(
    "uri", ["ftp://b/p", "s3:///p", "s3://", "s3://b/../c", "s3://b/p?x=1", "s3://b/a b", "s3://b//p", "http://b/p"]
)
def test_a_uri_that_names_nothing_is_refused_without_asking_anybody(uri):
    with pytest.raises(InvalidValue, match=r"checkpoint\.uri"):
        check_uri("checkpoint.uri", uri)


def test_the_extra_is_named_where_the_library_is_missing(monkeypatch):
    monkeypatch.setattr(remote, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"\.\[store\]"):
        open_uri("s3://bucket/prefix")


def test_of_two_who_write_a_new_object_the_second_is_overtaken(objects):
    objects.put("a/x", b"one", new=True)
    with pytest.raises(Overtaken):
        objects.put("a/x", b"two", new=True)
    assert objects.get("a/x").data == b"one"


def test_only_the_version_that_was_seen_is_written_over(objects):
    first = objects.put("x", b"one")
    seen = objects.get("x").version
    assert seen == first
    objects.put("x", b"two", over=seen)
    with pytest.raises(Overtaken):
        objects.put("x", b"three", over=seen)
    with pytest.raises(Overtaken):
        objects.put("gone", b"three", over=seen)
    assert objects.get("x").data == b"two"


def test_what_is_listed_is_what_lies_in_the_folder(objects):
    for key in ("a/x", "a/y/z", "ab", "b"):
        objects.put(key, key.encode())
    assert [(found.key, found.size) for found in objects.list("a")] == [("a/x", 3), ("a/y/z", 5)]
    objects.delete(["a/x", "never", "ab"])
    assert [found.key for found in objects.list()] == ["a/y/z", "b"]
    with pytest.raises(FileNotFoundError):
        objects.get("a/x")
    with pytest.raises(FileNotFoundError):
        objects.open("a/x")


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_an_object_is_read_piece_by_piece(objects, size, monkeypatch):
    monkeypatch.setattr(remote, "PART_BYTES", 30_000)
    content = os.urandom(size)
    objects.put("x", memoryview(content))
    found, piece = bytearray(), memoryview(bytearray(7919))
    with objects.open("x") as reading:
        assert reading.size == size
        while count := reading.readinto(piece):
            found += piece[:count]
    assert found == content


@pytest.mark.parametrize("over", ["memory", "moto"])
def test_an_object_that_is_replaced_while_it_is_read_comes_whole_or_not_at_all(objects, over, monkeypatch):
    """Also by one of the same length: nothing else would tell."""
    if over == "moto":
        for name, value in moto_bucket.environment().items():
            monkeypatch.setenv(name, value)
        objects = open_uri(moto_bucket.a_bucket("torn"))
    monkeypatch.setattr(remote, "PART_BYTES", 1000)
    monkeypatch.setattr(remote, "MOST_PARTS", 1)  # for those that are written
    objects.put("x", b"a" * 10_000)
    memory = memoryview(bytearray(1000))
    with objects.open("x") as reading:
        assert reading.readinto(memory) == 1000
        objects.put("x", b"b" * 10_000)
        with pytest.raises(Torn, match=r"another has written x while it was read\n  next: read it again"):  # noqa: PT012 - which piece says so depends on how many are ahead
            while reading.readinto(memory):
                assert bytes(memory) == b"a" * 1000
    with objects.open("x") as reading:
        assert sum(iter(lambda: reading.readinto(memory), 0)) == 10_000
        assert bytes(memory) == b"b" * 1000


class Stubborn(BaseHTTPRequestHandler):
    """A store that answers as it is told, one answer after the other."""

    answers: list[tuple[int, str]]
    access = ""  # what the last who asked showed

    def do_PUT(self):
        Stubborn.access = self.headers.get("Authorization", "")
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        code, text = self.answers.pop(0)
        self.send_response(code)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT

    def log_message(self, *_):
        pass


@pytest.fixture
def stubborn(monkeypatch):
    """A bucket on such a store: give it the answers."""
    server = HTTPServer(("127.0.0.1", 0), Stubborn)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield lambda *answers: setattr(Stubborn, "answers", list(answers)) or open_uri("s3://bucket/job")
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_conflict_of_two_writes_is_asked_again_or_told_as_being_overtaken(stubborn):
    conflict = (409, "<Error><Code>ConditionalRequestConflict</Code></Error>")
    objects = stubborn(conflict, (200, ""))
    assert objects.put("HEAD", b"x", over={"e_tag": '"e"'}) == {"e_tag": '"e"'}
    objects = stubborn(conflict, conflict, conflict, conflict, conflict, conflict)
    with pytest.raises(Overtaken):
        objects.put("HEAD", b"x", new=True)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ((404, "<Error><Code>NoSuchBucket</Code></Error>"), "make the bucket"),
        ((403, "<Error><Code>AccessDenied</Code></Error>"), "let this account"),
        ((400, "<Error><Code>Odd</Code></Error>"), "can be reached"),
    ],
)
def test_an_error_names_the_uri_and_the_next_step(stubborn, answer, word):
    for ask in (lambda store: store.get("HEAD"), lambda store: store.put("HEAD", b"")):
        with pytest.raises(StoreFailed, match=word) as caught:
            ask(stubborn(answer))
        assert "s3://bucket/job" in str(caught.value)
        assert "Debug" not in str(caught.value)


def test_a_profile_of_aws_configure_serves_where_the_environment_names_no_key(stubborn, monkeypatch, tmp_path):
    pytest.importorskip("boto3")
    file = tmp_path / "credentials"
    file.write_text("[mine]\naws_access_key_id = FROMPROFILE\naws_secret_access_key = s\n", encoding="utf-8")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    stubborn((200, "")).put("x", b"")
    assert "Credential=k/" in Stubborn.access  # the environment's, first
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    stubborn((200, "")).put("x", b"")
    assert "Credential=FROMPROFILE/" in Stubborn.access
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreFailed, match="nobody") as caught:
        stubborn()
    assert caught.value.lasting


def test_an_object_that_is_not_there_is_no_failure_of_the_store(stubborn):
    with pytest.raises(FileNotFoundError):
        stubborn((404, "<Error><Code>NoSuchKey</Code></Error>")).get("HEAD")
