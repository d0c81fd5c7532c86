"""Lines from a peer that may send anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import BadInput
from sublet.runtime.agent.line_reader import LineReader
from sublet.wire.lines import LONGEST_LINE, to_line
from sublet.wire.messages import RenewLease, SaveNow, WorkerUp

MESSAGES = [RenewLease(), SaveNow(worker_id="w"), WorkerUp(worker_id="w", pid=3)]
BAD = [b"{}\n", b"\n", b"nonsense\n", b'{"type":"WorkerUp","pid":"x"}\n', b"\x00\xff\n"]


@given(st.lists(st.sampled_from([*MESSAGES, *BAD])), st.lists(st.integers(0, 300)))
def test_however_the_bytes_are_cut_all_good_lines_are_read_and_all_bad_ones_told(said, cuts):
    data = b"".join(part if isinstance(part, bytes) else to_line(part) for part in said)
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
