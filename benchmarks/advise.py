"""How long the cluster adviser takes, as the price list and the clusters grow.

CPU milliseconds of this process, the least of three, after tables and traces have been read. The list is the one that
ships, then ten times as long, copied under other names and a little dearer; clusters have up to 8, 64 and 512 nodes.
"rows" are kinds of cluster worth weighing: of offers alike but in price, the cheapest. `python -m benchmarks.advise`
"""

from __future__ import annotations

from dataclasses import replace

from sublet.advise.adviser import Ask
from sublet.advise.candidates import rows_from_offers
from sublet.advise.frontier import Limits
from sublet.advise.profiles import known_profile
from sublet.domain.money import Price
from sublet.domain.offer import Offer
from sublet_lab.studies.deepvm.catalogue import answer_s, believed_offers

COPIES = (1, 10)
SIZES = (8, 64, 512)
GOAL_MS = 1_000


def main() -> None:
    """Print the table."""
    profile = known_profile("bert")
    offers = believed_offers()
    print("the cluster adviser, bert for USD 200 at most (CPU ms)")
    print("   offers  nodes up to   rows  clusters  frontier  answer, ms  us per cluster")
    for copies, size in [(1, size) for size in SIZES] + [(copies, 64) for copies in COPIES[1:]]:
        listed = _copied(offers, copies)
        ask = Ask(profile=profile, samples=5e7, limits=Limits(budget_usd=200.0), most_nodes=size)
        advice, took_s = answer_s(ask, listed)
        rows = len(rows_from_offers(listed)[0])
        print(
            f"  {len(listed):>7,} {size:>12} {rows:>6,} {advice.clusters:>9,} {len(advice.frontier):>9} "
            f"{1e3 * took_s:>11.0f} {1e6 * took_s / advice.clusters:>15.2f}"
        )
    print(f"  goal: under {GOAL_MS:,} ms for the list as it is on 64 nodes\n")


def _copied(offers: list[Offer], copies: int) -> list[Offer]:
    """The same offers again under other names and a little dearer."""
    found = list(offers)
    for copy in range(1, copies):
        found += [
            replace(each, id=f"{copy}.{each.id}", price=Price(each.price.micro_usd_per_h + copy), cap=None)
            for each in offers
        ]
    return found


if __name__ == "__main__":
    main()
