"""The adviser on the whole price list: how long it takes, and that no price which cannot be is ever advised."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sublet.advise.adviser import Advice, Ask, advise
from sublet.advise.frontier import Goal, Limits
from sublet.advise.profiles import Profile, known_profile
from sublet.domain.offer import Offer
from sublet.market.catalogue import load_catalogue, load_gpus, read_catalogue
from sublet.market.hygiene import Quarantined, outlived
from sublet_lab.studies.study import Findings, StudyTable, Tell, at_least, at_most, equals

ROWS = 3_322  # of the price list that ships
MOST_NODES = 64
TRIES = 3  # the least of them: others may be using the machine
GOAL_S = 1.0
ASKS: dict[str, tuple[str, float, Limits, Goal]] = {
    "bert, USD 200": ("bert", 5e7, Limits(budget_usd=200.0), "fastest"),
    "imagenet in 12 h": ("imagenet", 5e7, Limits(deadline_h=12.0), "cheapest"),
    "vit-b16, USD 3 per hour": ("vit-b16", 5e7, Limits(usd_per_h=3.0), "fastest"),
}

HEAD = "cloud,region,zone,instance_type,gpu,gpu_count,gpu_mem_gib,vcpus,mem_gib,price_ondemand,price_spot,as_of"
HONEST = (
    "alpha,east,,good8,B200,8,180,96,768,40,20,2026-08-22",
    "beta,east,,good8,B200,8,180,96,768,44,24,2026-08-20",
    "gamma,east,,good8,B200,8,180,96,768,48,,2026-08-01",
    "alpha,east,,good1,B200,1,180,12,96,5.2,2.6,2026-08-22",
)
PLANTED = {  # what is wrong: the row, and a word of the reason
    "one cent": ("evil,east,,bad,B200,1,180,12,96,0.01,,2026-08-22", "outside"),
    "zero": ("evil,east,,bad,B200,1,180,12,96,0,,2026-08-22", "zero"),
    "negative": ("evil,east,,bad,B200,1,180,12,96,-1,,2026-08-22", "negative"),
    "not a number": ("evil,east,,bad,B200,1,180,12,96,free,,2026-08-22", "not a number"),
    "spot above on-demand": ("evil,east,,bad,B200,1,180,12,96,5.0,6.0,2026-08-22", "above on-demand"),
    "one GPU's price for eight": ("evil,east,,bad,B200,8,180,96,768,5.0,,2026-08-22", "below the usual"),
    "cents for dollars": ("evil,east,,bad,B200,1,180,12,96,520,,2026-08-22", "outside"),
    "a fraction": ("evil,east,,bad,B200,0.125,180,12,96,0.6,,2026-08-22", "fraction"),
    "stands twice": ("alpha,east,,good1,B200,1,180,12,96,1.3,,2026-08-22", "same offer"),
    "stale spot": ("evil,east,,bad,B200,1,180,12,96,,1.1,2026-03-01", "stale"),
    "stale list": ("evil,east,,bad,B200,1,180,12,96,3.0,,2024-08-22", "stale"),
    "twelve on boards of eight": ("evil,east,,bad,B200,12,180,96,768,36,,2026-08-22", "boards of 8"),
    "a name that says two": ("evil,east,,2x_B200_BAD,B200,8,180,96,768,21,,2026-08-22", "name says 2"),
}
BAD_LINE = 2 + len(HONEST)
CHEAPEST_USD_PER_H = 2.6  # of the honest rows


def on_the_catalogue(tell: Tell) -> Findings:
    """Three questions to the whole list, and the planted rows."""
    tell("the whole price list, and rows that cannot be")
    offers, rows = believed_offers(), []
    slowest = 0.0
    for name, (model, samples, limits, goal) in ASKS.items():
        ask = Ask(profile=known_profile(model), samples=samples, limits=limits, goal=goal, most_nodes=MOST_NODES)
        advice, took_s = answer_s(ask, offers)
        slowest = max(slowest, took_s)
        best = advice.best
        rows.append([name, f"{best}", f"{best.hours:.2f}", f"{best.usd:.2f}", f"{advice.clusters:,}", f"{took_s:.2f}"])
    listed = load_catalogue()
    lines = {each.line for each in listed.listings} | {each.listing.line for each in listed.quarantined}
    found = {name: planted_advice(name) for name in PLANTED}
    advised = sum(_bad(advice, out) for advice, out in found.values())
    caught = sum(any(PLANTED[name][1] in each.reason for each in out) for name, (_, out) in found.items())
    checks = [
        equals("price list: rows read", len(lines), ROWS),
        at_most(f"price list: CPU time of an answer, up to {MOST_NODES} nodes", slowest, GOAL_S, unit="s"),
        at_least("bad rows: kinds planted", len(PLANTED), 10),
        equals("bad rows: kinds quarantined with their reason", caught, len(PLANTED)),
        equals("bad rows: clusters advised with one", advised, 0),
    ]
    columns = ["question", "answer", "h", "USD", "clusters", "CPU s"]
    return Findings(checks=checks, tables=[StudyTable(title="The whole list", columns=columns, rows=rows, texts=2)])


def believed_offers() -> list[Offer]:
    """The offers that `sublet advise` chooses from."""
    catalogue = load_catalogue()
    ids = {listing.id for listing in outlived(catalogue.listings)[0]}
    return [offer for offer in catalogue.select() if offer.id in ids]


def answer_s(ask: Ask, offers: list[Offer]) -> tuple[Advice, float]:
    """The answer, and the least CPU seconds of a few tries, after tables and traces have been read."""
    gpus, taken = load_gpus(), []
    advice = advise(ask, offers, gpus)
    for _ in range(TRIES):
        started_s = time.process_time()
        advice = advise(ask, offers, gpus)
        taken.append(time.process_time() - started_s)
    return advice, min(taken)


def planted(folder: Path, kind: str) -> Path:
    """A small price list with one row that cannot be."""
    path = folder / "offers.csv"
    path.write_text("\n".join([HEAD, *HONEST, PLANTED[kind][0]]) + "\n", encoding="utf-8")
    return path


def planted_advice(kind: str) -> tuple[Advice, list[Quarantined]]:
    """The advice for such a list, and the rows that are set aside."""
    with tempfile.TemporaryDirectory() as folder:
        catalogue = read_catalogue(planted(Path(folder), kind))
    believed, stale = outlived(catalogue.listings)
    ids = {listing.id for listing in believed}
    offers = [offer for offer in catalogue.select() if offer.id in ids]
    profile = replace(_TOY, name=f"toy beside {kind}")
    advice = advise(Ask(profile=profile, samples=1e7, most_nodes=8), offers, load_gpus())
    return advice, [each for each in (*catalogue.quarantined, *stale) if each.listing.line == BAD_LINE]


def _bad(advice: Advice, out: list[Quarantined]) -> int:
    """Clusters of the advice in which a price of the planted row stands: by its name, or cheaper than honest ones."""
    bad = {(each.listing.id, each.listing.usd_per_h) for each in out}
    shown = {*advice.frontier, advice.best, advice.cheapest, advice.fastest, *advice.beside}
    offers = {offer for each in shown for offer in (each.offer, *each.spots)}
    return sum(
        (offer.id, offer.price.usd_per_h) in bad or offer.price.usd_per_h < CHEAPEST_USD_PER_H for offer in offers
    )


_TOY = Profile(
    name="toy",
    batch=4096,
    state_bytes=1e9,
    restart_s=60.0,
    source="made up",
    rates={"B200": {1: 100.0, 8: 700.0, 64: 4000.0}},
    spread=0.0,
)
