"""Prices of offers over time: price histories as step functions.

A history is a list of snapshots of a price list. A field that is empty in one of them states no price: the last stated
price goes on, and `listed_at` tells that it is old. The clock of a book starts at `zero_utc_s`, so a book can be laid
over a spot trace or a simulation by `rebased`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from pathlib import Path

import numpy as np

from sublet import data
from sublet.data.csvfile import Bounds, TextTable, read_columns
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.errors import InvalidValue, UnknownName
from sublet.market.catalogue import offer_id
from sublet.market.steps import Steps
from sublet.solve.arrays import Floats, Ints

P3_TRACE_ZERO_UTC = "2023-02-15T22:08:16Z"  # where the clock of the trace skypilot-v100-2023-02 starts
NOT_STATED = -1
MOST_USD_PER_H = 1_000_000.0  # beyond this a field is something else than a price
INSTANT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PriceBook:
    """Prices by offer id. Times are seconds after `zero_utc_s`, which counts from 1970 in UTC."""

    series: Mapping[str, Steps] = field(repr=False)  # micro-USD per hour, NOT_STATED where a snapshot names none
    zero_utc_s: float = 0.0
    end_s: float = math.inf  # the last moment of which anything is recorded

    def keys(self, *, instance_type: str = "", region: str = "", market: Market | None = None) -> list[str]:
        """The offers with a history, sorted; an empty word fits all."""
        wanted = {word for word in (instance_type, region, market) if word}
        return sorted(key for key in self.series if wanted <= set(key.split(":")))

    def price_at(self, key: str, t_s: float) -> Price | None:
        """The last price stated by `t_s`; None before the first."""
        steps = self._of(key)
        index = int(np.searchsorted(steps.t_s, t_s, side="right")) - 1
        while (
            index >= 0 and steps.value[index] == NOT_STATED
        ):  # gaps are one snapshot long, so this takes a step or two
            index -= 1
        return Price(int(steps.value[index])) if index >= 0 else None

    def changes(self, key: str, start_s: float, end_s: float) -> Iterator[tuple[float, Price]]:
        """The price in force at `start_s`, if any, then every change before `end_s`."""
        price = self.price_at(key, start_s)
        if price is not None and start_s < end_s:
            yield start_s, price
        for t_s, micro_usd_per_h in zip(*self._of(key).between(start_s, end_s), strict=True):
            if micro_usd_per_h != NOT_STATED and (price is None or micro_usd_per_h != price.micro_usd_per_h):
                price = Price(int(micro_usd_per_h))
                yield float(t_s), price

    def rebased(self, zero_utc: str) -> PriceBook:
        """The same prices on a clock that starts at `zero_utc`, for example 2026-08-01T00:00:00Z."""
        shift_s = utc_s(zero_utc) - self.zero_utc_s
        moved = {key: Steps(t_s=steps.t_s - shift_s, value=steps.value) for key, steps in self.series.items()}
        return PriceBook(series=moved, zero_utc_s=self.zero_utc_s + shift_s, end_s=self.end_s - shift_s)

    def _of(self, key: str) -> Steps:
        if key not in self.series:
            raise UnknownName("price history", key, self.series)
        return self.series[key]


def load_prices(*, instance_type: str = "", region: str = "") -> PriceBook:
    """The histories that Sublet knows, counted from 1970; only rows of this type and region are parsed."""
    aws = read_prices(
        data.locate("prices/aws_spot_history.csv.gz"), cloud="aws", instance_type=instance_type, region=region
    )
    others = read_prices(data.locate("prices/other_price_history.csv.gz"), instance_type=instance_type, region=region)
    ends_s = [book.end_s for book in (aws, others) if book.series]
    return PriceBook(series={**aws.series, **others.series}, end_s=max(ends_s, default=math.inf))


def load_p3_prices() -> PriceBook:
    """Spot prices of p3.2xlarge in nine zones, change by change, on the clock of the trace skypilot-v100-2023-02."""
    table = read_columns(data.locate("prices/aws_p3.2xlarge_spot_2023-02-15.csv.gz"), ("t_s", "zone", "price_spot"))
    table.check_names("zone")
    zone_R = table.columns["zone"]  # R rows
    t_s_R, micro_usd_per_h_R = table.floats("t_s"), _micro_usd_per_h(table, "price_spot")
    series = {}
    for (zone,), rows in _rows_by_key(zone_R).items():
        key = offer_id("aws", zone[:-1], zone, "p3.2xlarge", Market.SPOT)  # a zone is its region and a letter
        series[key] = _steps(table, rows, t_s_R, micro_usd_per_h_R)
    return PriceBook(series=series, zero_utc_s=utc_s(P3_TRACE_ZERO_UTC))


def read_prices(path: str | Path, *, cloud: str = "", instance_type: str = "", region: str = "") -> PriceBook:
    """A file of `time_utc`, the columns that name an offer, `price_ondemand` and `price_spot`.

    With `cloud`, the file is the history of that cloud and has zones; without, it has a column `cloud` and a GPU kind.
    """
    places = ("instance_type", "region", "zone") if cloud else ("cloud", "instance_type", "region", "gpu")
    asked = {"instance_type": instance_type, "region": region}
    table = read_columns(
        path,
        ("time_utc", *places, "price_ondemand", "price_spot"),
        containing=[word for word in asked.values() if word],
    )
    for name in places:
        table.check_names(name, may_be_empty=True)
    t_s_R = _times_s(table)
    prices = {
        Market.ON_DEMAND: _micro_usd_per_h(table, "price_ondemand"),
        Market.SPOT: _micro_usd_per_h(table, "price_spot"),
    }
    series = {}
    for key, rows in _rows_by_key(*(table.columns[name] for name in places)).items():
        place = {"cloud": cloud, "zone": ""} | dict(zip(places, key, strict=True))
        if any(word and place[name] != word for name, word in asked.items()):
            continue  # the words stand somewhere else in the line
        if not place["cloud"] or not (place["instance_type"] or place.get("gpu")):
            raise table.refusal(int(rows[0]), f"this row names no offer: {place}")
        # GCP states the price of a GPU without a machine around it; such a key must not look like a node's.
        label = place["instance_type"] or f"gpu-only-{place['gpu']}"
        for market, micro_usd_per_h_R in prices.items():
            steps = _steps(table, rows, t_s_R, micro_usd_per_h_R)
            if steps.value.max() != NOT_STATED:
                series[offer_id(place["cloud"], place["region"], place["zone"], label, market)] = steps
    return PriceBook(series=series, end_s=float(t_s_R.max()) if len(t_s_R) else math.inf)


def utc_s(text: str) -> float:
    """Seconds from 1970 to an instant written like 2023-02-15T22:08:16Z."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = datetime.min  # noqa: DTZ901 - has no time zone either, and so is refused below
    if instant.tzinfo is None:
        raise InvalidValue("time", text, "an instant with its time zone, such as 2023-02-15T22:08:16Z")
    return instant.timestamp()


def _times_s(table: TextTable) -> Floats:
    """The column `time_utc`, parsed at once; numpy takes no time zone, so the Z is cut off."""
    column = table.columns["time_utc"]
    if re.fullmatch(
        f"(?:{INSTANT};)*", ";".join([*column, ""])
    ):  # all at once: numpy alone would take odd things for times
        try:
            instants = np.array([text[:-1] for text in column], dtype="datetime64[s]")
            return instants.astype(np.int64).astype(np.float64)
        except ValueError:
            pass  # a 13th month
    for row, text in enumerate(column):
        try:
            utc_s(text if re.fullmatch(INSTANT, text) else "")
        except InvalidValue:
            raise table.wrong("time_utc", row, "an instant such as 2023-02-15T22:08:16Z") from None
    raise table.refusal(0, "time_utc cannot be read")


def _micro_usd_per_h(table: TextTable, name: str) -> Ints:
    usd_per_h = table.floats(name, Bounds(above=0, most=MOST_USD_PER_H), empty=NOT_STATED)
    return np.where(usd_per_h > 0, np.maximum(np.rint(usd_per_h * 1e6), 1), NOT_STATED).astype(np.int64)


def _rows_by_key(*columns: Sequence[str]) -> dict[tuple[str, ...], Ints]:
    """Row numbers of each key. Files are sorted by key, so runs are found first and joined after."""
    runs: dict[tuple[str, ...], list[Ints]] = {}
    row = 0
    for key, run in groupby(zip(*columns, strict=True)):
        start, row = row, row + len(list(run))
        runs.setdefault(key, []).append(np.arange(start, row))
    return {key: np.concatenate(parts) for key, parts in runs.items()}


def _steps(table: TextTable, rows: Ints, t_s_R: Floats, value_R: Ints) -> Steps:
    """One offer's history. Of two rows at one instant the one that states a price counts."""
    t_s, value = t_s_R[rows], value_R[rows]
    steps = np.diff(t_s)
    if (steps < 0).any():
        raise table.refusal(int(rows[int((steps < 0).argmax()) + 1]), "the time goes back within one offer")
    if (steps == 0).any():
        kept = np.ones(len(rows), dtype=np.bool_)
        for later in np.flatnonzero(steps == 0) + 1:
            if NOT_STATED not in value[later - 1 : later + 1] and value[later - 1] != value[later]:
                raise table.refusal(int(rows[later]), "a second price at the same instant")
            value[later] = max(value[later - 1], value[later])
            kept[later - 1] = False
        t_s, value = t_s[kept], value[kept]
    return Steps(t_s=t_s, value=value).compact()
