"""Lines from a peer that may send anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import BadInput
from sublet.runtime.agent.dialing import LineReader
from sublet.wire.files import Part
from sublet.wire.lines import LONGEST_LINE, to_frame, to_line
from sublet.wire.messages import RenewLease, SaveNow, WorkerUp

FRAMES = [
    Part(digest="a", data=b"\n" + to_line(RenewLease()) + b"#3 {}\n\x00"),
    Part(digest="b", data=b"x"),
    Part(digest="c"),
]
MESSAGES = [RenewLease(), SaveNow(worker_id="w"), WorkerUp(worker_id="w", pid=3), *FRAMES]
BAD = [b"{}\n", b"\n", b"nonsense\n", b'{"type":"WorkerUp","pid":"x"}\n', b"\x00\xff\n"]
BAD += [
    b'#3 {"type":"RenewLease"}\n\n{}',
    b"#-1 {}\n",
    b"#99999999999 {}\n",
    b'#1 {"type":"Part","digest":"d","data":"eA=="}\nx',
]


@given(st.lists(st.sampled_from([*MESSAGES, *BAD])), st.lists(st.integers(0, 300)))
def test_however_the_bytes_are_cut_all_good_lines_are_read_and_all_bad_ones_told(said, cuts):
    data = b"".join(map(_bytes, said))
    reader, read = LineReader(), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        read += reader.feed(data[start:end])
    read += reader.feed(b"")
    expected = [part for part in said if not isinstance(part, bytes)]
    assert [part for part in read if not isinstance(part, BadInput)] == expected
    assert sum(isinstance(part, BadInput) for part in read) == sum(p in BAD and p != b"\n" for p in said)


def test_a_line_without_end_is_refused_once_and_kept_within_bounds():
    reader = LineReader()
    told = [part for _ in range(100) for part in reader.feed(b"x" * 100_000)]
    assert len(told) == 1
    assert isinstance(told[0], BadInput)
    assert len(reader._rest) <= LONGEST_LINE
    assert reader.feed(b"end\n" + to_line(RenewLease())) == [RenewLease()]


def test_a_frame_that_is_too_long_is_refused_once_and_nothing_in_it_is_read():
    reader = LineReader(longest=1000)
    data = b'#2000 {"type":"Part","digest":"d"}\n' + to_line(RenewLease()) * 100
    told = [part for at in range(0, 2000, 100) for part in reader.feed(data[at : at + 100])]
    assert [type(part) for part in told] == [BadInput]
    assert reader._frame == []
    rest = reader.feed(data[2000 : 2000 + data.index(b"\n") + 1] + to_line(SaveNow(worker_id="w")))
    assert rest[-1] == SaveNow(worker_id="w")


def _bytes(said):
    if isinstance(said, bytes):
        return said
    return to_frame(said) if isinstance(said, Part) else to_line(said)
