"""Secrets are hidden in a stream, wherever it is cut."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.api.logs import LONGEST_LINE, Mask, lines_with, log_stream
from sublet.runtime.controller_api.views import JobLog, LogPart
from sublet.runtime.secret_files import SecretFiles

letters = st.text("ab\n", max_size=12)


@given(
    st.lists(st.text("ab", min_size=2, max_size=5), min_size=1, max_size=3),
    st.lists(letters, max_size=8),
)
def test_no_secret_is_shown_however_the_stream_is_cut(secrets, chunks):
    mask = Mask(secrets)
    shown = b"".join([*(mask.feed(chunk.encode()) for chunk in chunks), mask.rest()]).decode()
    assert not any(secret in part for secret in secrets for part in shown.split("***"))


@given(st.lists(letters, max_size=8))
def test_without_secrets_the_stream_is_as_it_was(chunks):
    mask = Mask(["", "zzz"])
    assert b"".join([*(mask.feed(chunk.encode()) for chunk in chunks), mask.rest()]) == "".join(chunks).encode()


def test_a_key_of_many_lines_is_hidden_line_by_line():
    mask = Mask(["-----BEGIN-----\nMIIEvQIBADAN\nBgkqhkiG\n"])
    assert mask.feed(b"it is BgkqhkiG, you see") == b"it is ***, you see"


@pytest.mark.parametrize("secret", ["four", "a-token-of-twenty-eight-signs"])
def test_nobody_sees_how_long_a_secret_was_that_was_taken_out_of_a_log(tmp_path, secret):
    """The file stays as long as it was: whoever reads on in it finds the same place."""
    path = tmp_path / "jobs" / "j" / "logs" / "x.log"
    path.parent.mkdir(parents=True)
    path.write_text(f"it is {secret}{secret}, and *** is not\n")
    size = path.stat().st_size
    SecretFiles(tmp_path).forget("j", {"KEY": secret})
    assert path.stat().st_size == size

    async def read():
        async def ended():
            return True

        async def look():
            return JobLog(parts=(LogPart(path=str(path), rank=0),))

        return b"".join([chunk async for chunk in log_stream(look, ended=ended, follow=False, rank=0)])

    assert asyncio.run(read()) == b"it is ******, and *** is not\n"


@pytest.mark.parametrize("start", [0, 6])
def test_a_file_that_begins_anew_is_followed_from_its_begin_and_shown_once(tmp_path, start):
    path, starts = tmp_path / "w.log", [start]
    path.write_text("other\nfirst\n" if start else "first\n")

    async def read():
        looks = 0

        async def look():
            return JobLog(parts=(LogPart(path=str(path), rank=0, start=starts[-1]),))

        async def ended():
            nonlocal looks
            looks += 1
            if looks == 1:
                path.write_text("new\n")
                starts.append(0)
            return looks > 2

        return b"".join([chunk async for chunk in log_stream(look, ended=ended, follow=True, rank=0)])

    assert asyncio.run(read()) == b"first\nnew\n"


def test_the_last_lines_are_the_last_lines(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)))

    async def read(tail):
        async def ended():
            return True

        async def look():
            return JobLog(parts=(LogPart(path=str(path), rank=0),))

        stream = log_stream(look, ended=ended, follow=False, tail=tail, rank=0)
        return b"".join([chunk async for chunk in stream])

    assert asyncio.run(read(2)) == b"line 99998\nline 99999\n"
    assert asyncio.run(read(0)) == b""
    assert asyncio.run(read(None)) == path.read_bytes()


def test_how_a_worker_ended_stands_before_what_the_next_one_prints(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(f"{name} speaks\n".encode())

    async def read():
        async def ended():
            return True

        async def look():
            first = LogPart(path=str(tmp_path / "a"), rank=0, worker_id="a", node_id="n", ended="exit code 5")
            return JobLog(parts=(first, LogPart(path=str(tmp_path / "b"), rank=0, worker_id="b", node_id="n")))

        return b"".join([chunk async for chunk in log_stream(look, ended=ended, follow=False, rank=0)])

    assert asyncio.run(read()).decode().splitlines() == [
        "a speaks",
        "-- worker a on node n ended: exit code 5 --",
        "-- rank 0 is worker b on node n from here --",
        "b speaks",
    ]


@given(st.lists(st.text("abA\u00e9\n", max_size=12)), st.sampled_from(["a", "aB", "\u00e9"]))
def test_lines_with_words_are_those_of_the_whole_text_however_it_is_cut(texts, words):
    chunks = [text.encode() for text in texts]
    text = b"".join(chunks)
    lines = [line for line in text.split(b"\n") if words.encode().lower() in line.lower()]

    async def told():
        for chunk in chunks:
            yield chunk

    async def found():
        return b"".join([part async for part in lines_with(words, told())])

    assert [line for line in asyncio.run(found()).split(b"\n") if line] == lines


def test_a_line_without_an_end_is_not_kept_whole():
    """A bar of progress may write megabytes: they are looked at in pieces, and let go."""

    async def told():
        for _ in range(64):
            yield b"x" * (LONGEST_LINE // 8)
        yield b"needle\n"

    async def found():
        return [len(part) async for part in lines_with("needle", told())]

    (size,) = asyncio.run(found())
    assert size <= 2 * LONGEST_LINE
