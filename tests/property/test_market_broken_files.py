"""Broken files end in our own errors, never in another one and never in a wrong number."""

from __future__ import annotations

import csv
import gzip
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import SubletError
from sublet.market.catalogue import read_catalogue, read_gpus
from sublet.market.prices import read_prices
from sublet.market.spot import read_trace

TRACE = "t_s,zone,available\n0,a,3\n60,a,2\n0,b,1\n45.5,b,0\n120,a,0\n"
OFFERS = (
    "cloud,region,zone,instance_type,gpu,gpu_count,gpu_mem_gib,vcpus,mem_gib,price_ondemand,price_spot,as_of\n"
    "alpha,east,e-1,a1,X1,1,16,8,64,1.00,0.30,2026-08-22\n"
    "alpha,west,*,a4,X1,4,16,32,256,4.10,1.25,2026-08-22\n"
    "beta,*,,b1,X1,1,16,8,64,0.95,0.25,2026-08-20\n"
    "gamma,north,,c1,X1,1,16,8,64,1.20,,2025-09-11\n"
)
HISTORY = (
    "time_utc,instance_type,region,zone,price_ondemand,price_spot\n"
    "2023-01-01T00:00:00Z,p9,east,e1,4.0,1.0\n"
    "2023-01-02T00:00:00Z,p9,east,e1,4.0,1.5\n"
    "2023-01-01T00:00:00Z,p9,west,w1,,2.0\n"
)
GPUS = (
    "gpu,vendor,mem_gib,fp32_tflops,tf32_tflops,fp16_tflops,bf16_tflops,mem_bw_gbps,nvlink_gbps,pcie_gbps\n"
    "X1,v,16,8.1,,65,,320,0,16\n"
    "X2,v,40,19.5,156,312,312,1555,600,32\n"
)
FILES = {
    "trace": (TRACE, lambda path: read_trace(path, polarity="availability")),
    "offers": (OFFERS, read_catalogue),
    "history": (HISTORY, lambda path: read_prices(path, cloud="aws")),
    "gpus": (GPUS, read_gpus),
}
NUMBERS = {
    "trace": ("t_s", "available"),
    "offers": ("gpu_count", "vcpus"),
    "history": ("price_ondemand", "price_spot"),
    "gpus": ("mem_gib", "nvlink_gbps"),
}
NAMES = {"trace": "zone", "offers": "instance_type", "history": "time_utc", "gpus": "gpu"}
NO_NUMBERS = [
    "x",
    "nan",
    "inf",
    "-inf",
    "-1",
    "1_0",
    "0x1f",
    "1,5",
    "--",
    "٣",
    "1e999",
    "3 4",
    "\x00",
    "½",
    "1;2",
    "9" * 5000,
]


def field_set(text, row, name, value):
    rows = [line.split(",") for line in text.rstrip("\n").split("\n")]
    rows[row][rows[0].index(name)] = value
    return "\n".join(",".join(fields) for fields in rows) + "\n"


def broken_texts(kind):
    """(what is wrong, the file as bytes)."""
    text, _ = FILES[kind]
    lines = text.rstrip("\n").split("\n")
    yield "empty", b""
    yield "only a line end", b"\n"
    yield "header only", (lines[0] + "\n").encode()
    yield "no header", ("\n".join(lines[1:]) + "\n").encode()
    yield "semicolons", text.replace(",", ";").encode()
    yield "tabs", text.replace(",", "\t").encode()
    yield "not UTF-8", text.encode().replace(b",", b"\xff\xfe,")
    yield "UTF-16", text.encode("utf-16")
    yield "cut gzip", gzip.compress(text.encode())[:-12]
    yield "damaged gzip", gzip.compress(text.encode())[:20] + b"\x00" * 20
    yield "open quote", (text + '"').encode()
    yield "quote over lines", text.replace(lines[1], '"' + lines[1] + "\n" + '"', 1).encode()
    yield "blank line inside", text.replace(lines[1], lines[1] + "\n", 1).encode()
    yield "a field too many", text.replace(lines[1], lines[1] + ",1", 1).encode()
    yield "a field too few", text.replace(lines[1], lines[1].rpartition(",")[0], 1).encode()
    yield "carriage returns only", text.replace("\n", "\r").encode()
    yield "column twice", "\n".join(line + "," + line.split(",")[0] for line in lines).encode()
    for column in (*NUMBERS[kind], NAMES[kind]):
        yield f"{column} is missing", text.replace(column, "other", 1).encode()
    for column in NUMBERS[kind]:
        for value in NO_NUMBERS:
            yield f"{column} = {value[:9]!r}", field_set(text, 2, column, value).encode()
    yield "no name", field_set(text, 1, NAMES[kind], "").encode()
    yield "a name with a tab", field_set(text, 1, NAMES[kind], "a\tb").encode()


BROKEN = [(kind, what, content) for kind in FILES for what, content in broken_texts(kind)]


def read_bytes(kind, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.csv"
        path.write_bytes(content)
        return FILES[kind][1](path)


@pytest.mark.parametrize("kind", FILES)
def test_the_unbroken_file_is_read(kind):
    read_bytes(kind, FILES[kind][0].encode())


@pytest.mark.parametrize(("kind", "what", "content"), BROKEN, ids=[f"{kind}: {what}" for kind, what, _ in BROKEN])
def test_a_broken_file_ends_in_our_own_error(kind, what, content):
    with pytest.raises(SubletError) as caught:
        read_bytes(kind, content)
    assert "file.csv" in str(caught.value)


@pytest.mark.parametrize("kind", FILES)
def test_a_folder_in_place_of_a_file_ends_in_our_own_error(kind, tmp_path):
    with pytest.raises(SubletError, match="cannot be read"):
        FILES[kind][1](tmp_path)


edits = st.tuples(
    st.integers(0, 10_000), st.sampled_from(["cut", "put", "over"]), st.sampled_from('0195.-,"\n\r eE_+nx:TZ*٣')
)


def edited(text, changes):
    for position, verb, character in changes:
        at = position % (len(text) + 1)
        text = text[:at] + ("" if verb == "cut" else character) + text[at + (verb != "put") :]
    return text


def rows_of(text):
    return list(csv.DictReader(text.split("\n")))


@given(st.lists(edits, min_size=1, max_size=3))
def test_a_slip_in_a_trace_is_refused_or_read_as_it_is_written(changes):
    text = edited(TRACE, changes)
    try:
        trace = read_bytes("trace", text.encode())
    except SubletError:
        return
    for row in rows_of(text):
        assert trace.value_at(row["zone"].strip(), float(row["t_s"])) == int(row["available"])


@given(st.lists(edits, min_size=1, max_size=3))
def test_a_slip_in_a_history_is_refused_or_read_as_it_is_written(changes):
    text = edited(HISTORY, changes)
    try:
        book = read_bytes("history", text.encode())
    except SubletError:
        return
    stated = [Decimal(row["price_spot"]) for row in rows_of(text) if row["price_spot"]]
    read = [value for key in book.keys(market="spot") for value in book.series[key].value if value >= 0]
    assert {max(1, round(price * 10**6)) for price in stated} == set(read)


@given(st.lists(edits, min_size=1, max_size=3))
def test_a_slip_in_a_price_list_is_refused_set_aside_or_read_as_it_is_written(changes):
    text = edited(OFFERS, changes)
    try:
        catalogue = read_bytes("offers", text.encode())
        offers = catalogue.select()
    except SubletError:
        return
    rows = rows_of(text)
    written = {
        (row["instance_type"], round(Decimal(row[column]) * 10**6))
        for row in rows
        for column in ("price_ondemand", "price_spot")
        if row[column] and row[column].isascii() and "_" not in row[column] and is_decimal(row[column])
    }
    assert {(offer.instance_type, offer.price.micro_usd_per_h) for offer in offers} <= written
    assert len(offers) + len(catalogue.quarantined) == sum(
        bool(row[c]) for row in rows for c in ("price_ondemand", "price_spot")
    )


def is_decimal(text):
    try:
        return Decimal(text).is_finite()
    except ArithmeticError:
        return False
