"""What the one reader of comma-separated files takes, what it refuses, and what its errors say."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from sublet.data import csvfile
from sublet.data.csvfile import Bounds, read_columns
from sublet.errors import BadInput, MissingData

PACKED = gzip.compress(b"a,b\n1,2\n", mtime=0)


@pytest.fixture
def written(tmp_path):
    def write(content, name="t.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(content, required=("a", "b"), **rules):
    with pytest.raises(BadInput) as caught:
        read_columns(content if isinstance(content, bytes) else content.encode(), required, source="t.csv", **rules)
    assert caught.value.source == "t.csv"
    return caught.value


def lists(table):
    return {name: list(column) for name, column in table.columns.items()}


def test_a_path_and_what_it_holds_are_read_alike(written):
    content = b"a,b,more\n1,x,\n2,y,z\n"
    path = written(content)
    for file in (content, path, str(path), gzip.compress(content)):
        table = read_columns(file, ("b", "a"))
        assert lists(table) == {"b": ["x", "y"], "a": ["1", "2"]}
        assert list(table.lines) == [2, 3]
        assert len(table) == 2
    assert read_columns(path, ("a",)).source == str(path)


def test_the_first_bytes_and_not_the_name_tell_gzip(written):
    path = written(gzip.compress(b"a,b\n1,x\n"), "plain.csv")
    assert list(read_columns(path, ("b", "a")).columns["a"]) == ["1"]
    with pytest.raises(BadInput, match=r"ends in \.gz but it is not a gzip file"):
        read_columns(written("a,b\n1,x\n", "t.csv.gz"), ("a",))


def test_quoted_fields_and_windows_line_ends_and_a_byte_order_mark_are_read(written):
    table = read_columns(written(b'\xef\xbb\xbfa,b\r\n1,"x, y"\r\n2,z\r\n'), ("a", "b"))
    assert list(table.columns["b"]) == ["x, y", "z"]
    assert table.floats("a").tolist() == [1.0, 2.0]


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_quick_and_the_quoted_way_of_reading_agree(end):
    plain = read_columns(f"a,b\n1,x\n2,{end}".encode(), ("a", "b"))
    quoted = read_columns(f'a,b\n"1","x"\n"2",""{end}'.encode(), ("a", "b"))
    assert lists(plain) == lists(quoted) == {"a": ["1", "2"], "b": ["x", ""]}
    assert list(plain.lines) == list(quoted.lines)


def test_a_quoted_line_break_keeps_the_line_numbers_right():
    table = read_columns(b'a,b\n1,"x\ny"\n2,z\nbad,z\n', ("a", "b"))
    assert table.columns["b"][0] == "x\ny"
    assert list(table.lines) == [2, 4, 5]
    with pytest.raises(BadInput, match="line 2: b is"):
        table.check_names("b")


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_filter_keeps_the_line_numbers(quote):
    text = f"a,b\n1,x\n2,{quote}y{quote}\nbad,y\n".encode()
    table = read_columns(text, ("a", "b"), containing=["y"])
    assert list(table.lines) == [3, 4]
    with pytest.raises(BadInput, match="line 4"):
        table.floats("a")
    assert len(read_columns(text, ("a",), containing=["y", "nowhere"])) == 0


def test_where_all_columns_are_known_those_that_are_there_are_read_and_others_refused():
    table = read_columns(b"c,a\n3,1\n", ("a",), known=("a", "b", "c"))
    assert lists(table) == {"c": ["3"], "a": ["1"]}
    error = refusal("a,d\n1,2\n", ("a",), known=("a", "b", "c"))
    assert error.line == 1
    assert "column 'd' is not one of a, b, c" in str(error)


@pytest.mark.parametrize("quote", ["", '"'])
def test_what_people_do_to_files_is_forgiven_only_where_the_caller_says_so(quote):
    text = f" a ,b\n1,{quote}x{quote}\n\n2,y\n\n".encode()
    table = read_columns(text, ("a", "b"), forgiving=True)
    assert lists(table) == {"a": ["1", "2"], "b": ["x", "y"]}
    assert list(table.lines) == [2, 4]
    assert lists(read_columns(text.replace(b"\n", b"\r"), ("a", "b"), forgiving=True)) == lists(table)
    assert "missing columns: a" in str(refusal(text.replace(b"\n\n", b"\n")))
    blank = refusal(text.replace(b" a ", b"a"))
    assert (blank.line, blank.why) == (3, "the line is blank")
    assert "CSV" in str(refusal(text.replace(b" a ", b"a").replace(b"\n", b"\r")))
    assert refusal(b"\n" + text, forgiving=True).line == 1


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        ("", None, "the file is empty"),
        ("\n", None, "the file is empty"),
        (" \n\t\n", None, "the file is empty"),
        (b"\xef\xbb\xbf", None, "the file is empty"),
        ("a,b\n", None, "there is a header but no row"),
        ("a,c\n1,2\n", 1, "missing columns: b"),
        ("c\n1\n", 1, "missing columns: a, b"),
        ("a;b\n1;2\n", 1, "missing columns: a, b"),
        ("a,b,a\n1,2,3\n", 1, "column 'a' is there twice"),
        ("a,b,c,c\n1,2,3,4\n", 1, "column 'c' is there twice"),
        ("a,b\n1,2\n3\n", 3, "1 fields where the header has 2"),
        ("a,b\n1,2\n3,4,5\n", 3, "3 fields where the header has 2"),
        ('a,b\n1,"2"\n3,4,5\n', 3, "3 fields where the header has 2"),
        ("a,b\n1,2\n\n3,4\n", 3, "the line is blank"),
        ('a,b\n1,"2\n', 2, "not CSV: unexpected end of data"),
        ('a,b\n1,"2"2\n', 2, "not CSV: ',' expected after '\"'"),
        ("a,b\r1,2\r", 1, "not CSV: new-line character"),
        ("a,b\n1,\0\n", 2, "a zero byte"),
        (b"a,b\n1,\xff\n", 2, "byte 0xff is not UTF-8 text"),
        ("a,b\n1,2\n".encode("utf-16"), 1, "not UTF-8 text"),
        (PACKED[:-4], None, "broken gzip data"),
        (PACKED[:14], None, "broken gzip data"),
        (PACKED + b"junk", None, "broken gzip data"),
        (PACKED[:12] + b"\0" * 20, None, "broken gzip data"),
        (b"\x1f\x8b", None, "broken gzip data"),
    ],
    ids=ascii,
)
def test_a_broken_file_is_refused_with_its_line(content, line, why):
    error = refusal(content)
    assert why in error.why
    assert error.line == line


def test_a_row_may_have_a_name_of_its_own_in_errors():
    assert "a header but no job" in str(refusal("a,b\n", row_is="job"))


def test_a_file_that_is_not_there_says_what_to_give(tmp_path):
    with pytest.raises(MissingData, match="next: give the path"):
        read_columns(tmp_path / "none.csv", ("a",))


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, f"{tmp_path}/\0.csv"):
        with pytest.raises(BadInput, match="cannot be read"):
            read_columns(path, ("a",))


def test_more_than_anyone_needs_is_refused_packed_or_not(written, monkeypatch):
    monkeypatch.setattr(csvfile, "MAX_BYTES", 1000)
    content = b"a\n" + b"1\n" * 1000
    for file in (content, written(content), gzip.compress(content)):
        with pytest.raises(BadInput, match="larger than"):
            read_columns(file, ("a",))


def column_of(*texts):
    return read_columns("\n".join(["a,b", *(f"{text},x" for text in texts)]).encode(), ("a",), source="t.csv")


def test_numbers_are_read_at_once_and_empty_fields_as_the_caller_says():
    assert column_of("1", "-2.5", "1e3", " 7 ").floats("a").tolist() == [1.0, -2.5, 1000.0, 7.0]
    values = column_of("1", "", "3").floats("a", Bounds(above=0), empty=-1)  # the filling need not be inside
    assert values.dtype == np.float64
    assert values.tolist() == [1.0, -1.0, 3.0]
    assert np.isnan(column_of("", "").floats("a", empty=np.nan)).all()
    whole = column_of("1", "-2", str(2**62 + 1)).ints("a")
    assert whole.dtype == np.int64
    assert whole.tolist() == [1, -2, 2**62 + 1]
    assert column_of("8", "8.0", "1e3").floats("a", Bounds(whole=True)).tolist() == [8, 8, 1000]


@pytest.mark.parametrize("empty", [None, 0.0])
@pytest.mark.parametrize(
    "text", ["x", "nan", "inf", "-inf", "1e999", "1_0", "0x1f", "--", "٣", "½", "3 4", "1;2", " ", "-1", "9" * 5000]
)
def test_what_is_no_number_is_refused_with_line_field_value_and_range(text, empty):
    others = ["1", ""] if empty is not None else ["1", "2"]
    with pytest.raises(BadInput) as caught:
        column_of(*others, text, "4").floats("a", Bounds(least=0, most=1e6), empty=empty)
    assert (caught.value.source, caught.value.line) == ("t.csv", 4)
    assert caught.value.why.startswith(f"a is {text[:60]!r}"[:-1])
    assert "not a finite number from 0 to 1,000,000" in caught.value.why
    assert len(caught.value.why) < 200
    assert ("plain digits" in caught.value.why) == (text in {"1_0", "٣", "½"})


@pytest.mark.parametrize("text", ["x", "1.0", "1e3", "nan", "1_0", "٣", "", "-1", "9" * 20, "-" + "9" * 20, "9" * 5000])
def test_what_is_no_whole_number_is_refused_with_line_field_value_and_range(text):
    with pytest.raises(BadInput) as caught:
        column_of("1", text, "x").ints("a", Bounds(least=0))
    assert caught.value.line == 3
    assert "not a whole number of at least 0" in caught.value.why


def test_an_empty_field_is_refused_where_nothing_stands_for_it():
    with pytest.raises(BadInput, match="line 3: a is '', not a finite number"):
        column_of("1", "").floats("a")


@pytest.mark.parametrize(
    ("bounds", "says", "inside", "outside"),
    [
        (Bounds(), "a finite number", [-1e300, 0], []),
        (Bounds(least=0), "a finite number of at least 0", [0, 1], [-1e-9]),
        (Bounds(above=0), "a finite number above 0", [1e-9], [0, -1]),
        (Bounds(most=5), "a finite number at most 5", [5, -9], [5.1]),
        (Bounds(above=0, most=1e6), "a finite number above 0 and at most 1,000,000", [1, 1e6], [0, 1e6 + 1]),
        (Bounds(least=1, most=9, whole=True), "a whole number from 1 to 9", [1, 9], [0, 1.5, 10]),
        (Bounds(least=0.001), "a finite number of at least 0.001", [0.001], [0.0009]),
    ],
)
def test_bounds_say_what_they_hold(bounds, says, inside, outside):
    assert str(bounds) == says
    assert bounds.hold(np.array(inside, dtype=float)).all()
    assert not bounds.hold(np.array([*outside, np.nan, np.inf, -np.inf])).any()


@pytest.mark.parametrize("text", ["", " x", "x ", "a\tb", "\x1b[0m", "\u2028"])
def test_what_is_no_name_is_refused(text):
    table = column_of("good", text)
    with pytest.raises(BadInput, match=r"line 3: a is .* not a name"):
        table.check_names("a")
    if not text:
        table.check_names("a", may_be_empty=True)


def test_a_table_is_printed_in_one_line_and_compared_by_identity():
    table = column_of(*"1" * 1000)
    assert repr(table) == "TextTable(source='t.csv')"
    assert table == table  # noqa: PLR0124 - that it does not raise is the point
    assert table != column_of("1")
    assert len({table, table}) == 1
