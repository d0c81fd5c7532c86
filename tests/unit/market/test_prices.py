from __future__ import annotations

import pytest

from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.errors import BadInput, InvalidValue, UnknownName
from sublet.market.prices import NOT_STATED, P3_TRACE_ZERO_UTC, load_p3_prices, load_prices, read_prices, utc_s

HEAD = "time_utc,instance_type,region,zone,price_ondemand,price_spot"
ROWS = [
    "2023-01-01T00:00:00Z,p9,east,e1,4.0,1.0",
    "2023-01-01T01:00:00Z,p9,east,e1,4.0,",
    "2023-01-01T02:00:00Z,p9,east,e1,4.0,1.5",
    "2023-01-01T02:00:00Z,p9,east,e1,4.0,",
    "2023-01-01T03:00:00Z,p9,east,e1,5.0,1.5",
    "2023-01-01T00:00:00Z,p9,west,w1,,2.0",
]
KEY = "aws:east:e1:p9:spot"


def book_of(tmp_path, *rows, **wanted):
    path = tmp_path / "history.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return read_prices(path, cloud="aws", **wanted).rebased("2023-01-01T00:00:00Z")


def usd(text):
    return Price.from_usd_per_h(text)


def test_a_price_holds_until_the_next_one(tmp_path):
    book = book_of(tmp_path, *ROWS)
    assert book.price_at(KEY, -1.0) is None
    assert [book.price_at(KEY, hour * 3600.0) for hour in (0, 1.9, 2, 99)] == [usd("1")] * 2 + [usd("1.5")] * 2


def test_a_snapshot_without_a_price_keeps_the_last(tmp_path):
    assert book_of(tmp_path, *ROWS).price_at(KEY, 3600.0) == usd("1")


def test_changes_start_with_the_price_in_force(tmp_path):
    book = book_of(tmp_path, *ROWS)
    assert list(book.changes(KEY, 1800.0, 99_999.0)) == [(1800.0, usd("1")), (7200.0, usd("1.5"))]
    assert list(book.changes(KEY, -60.0, 60.0)) == [(0.0, usd("1"))]
    assert list(book.changes(KEY, 60.0, 60.0)) == []


def test_a_market_that_was_never_priced_has_no_history(tmp_path):
    book = book_of(tmp_path, *ROWS)
    assert book.keys() == ["aws:east:e1:p9:on-demand", KEY, "aws:west:w1:p9:spot"]
    assert book.keys(region="east", market=Market.SPOT) == [KEY]
    with pytest.raises(UnknownName, match="did you mean"):
        book.price_at("aws:west:w1:p9:on-demand", 0.0)


def test_a_filter_gives_what_reading_all_gives(tmp_path):
    everything = book_of(tmp_path, *ROWS)
    east = book_of(tmp_path, *ROWS, instance_type="p9", region="east")
    assert east.keys() == everything.keys(region="east")
    assert list(east.changes(KEY, 0.0, 1e9)) == list(everything.changes(KEY, 0.0, 1e9))
    assert book_of(tmp_path, *ROWS, region="e1").keys() == []  # the word stands in another column


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2023-01-01T01:00:00Z,p9,west,w1,4.0,2.0\n2023-01-01T00:30:00Z,p9,west,w1,4.0,2.0", "goes back"),
        ("2023-01-01T00:00:00Z,p9,west,w1,4.0,2.1", "second price"),
        ("2023-01-01T01:00:00,p9,west,w1,4.0,2.0", "time_utc is '2023-01-01T01:00:00'"),
        ("2023-13-01T01:00:00Z,p9,west,w1,4.0,2.0", "time_utc is"),
        ("yesterday,p9,west,w1,4.0,2.0", "time_utc is 'yesterday'"),
        ("2023-01-01T01:00:00Z,p9,west,w1,4.0,0", "price_spot is '0'"),
        ("2023-01-01T01:00:00Z,p9,west,w1,-4,1", "price_ondemand is '-4'"),
        ("2023-01-01T01:00:00Z,p9,west,w1,4.0,nan", "price_spot is 'nan'"),
        ("2023-01-01T01:00:00Z,p9,west,w1,4.0,cheap", "price_spot is 'cheap'"),
        ("2023-01-01T01:00:00Z,p9,west,w1,4.0,2e9", "price_spot is '2e9'"),
        ("2023-01-01T01:00:00Z,,west,w1,4.0,2", "names no offer"),
        ("2023-01-01T01:00:00Z,p9,west,w1,4.0", "5 fields"),
    ],
)
def test_a_history_that_cannot_be_is_refused_with_its_line(tmp_path, row, why):
    with pytest.raises(BadInput, match=why) as caught:
        book_of(tmp_path, *ROWS, row)
    assert caught.value.line in {8, 9}


def test_an_instant_needs_a_time_zone():
    assert utc_s("1970-01-02T00:00:00Z") == 86_400.0
    for text in ("1970-01-02T00:00:00", "soon"):
        with pytest.raises(InvalidValue, match="time zone"):
            utc_s(text)


def test_the_histories_that_ship_hold_together():
    book = load_prices(instance_type="p3.2xlarge")
    keys = book.keys(market=Market.SPOT)
    assert len(keys) == 13
    assert all(set(key.split(":")) >= {"p3.2xlarge"} for key in keys)
    price = book.price_at("aws:us-east-1:use1-az1:p3.2xlarge:spot", utc_s("2023-06-01T00:00:00Z"))
    assert price == usd("0.9256")


def test_the_price_of_a_gpu_without_a_machine_does_not_look_like_a_node():
    keys = load_prices(region="us-central1").keys(market=Market.ON_DEMAND)
    assert "gcp:us-central1:gpu-only-A100:on-demand" in keys


def test_the_p3_history_runs_on_the_clock_of_its_trace():
    book = load_p3_prices()
    assert book.zero_utc_s == utc_s(P3_TRACE_ZERO_UTC)
    assert list(book.changes("aws:us-east-1:us-east-1a:p3.2xlarge:spot", 0.0, 40_000.0)) == [
        (0.0, usd("1.6703")),
        (33_540.0, usd("1.6729")),
    ]
    assert all(steps.value.min() > NOT_STATED for steps in book.series.values())
