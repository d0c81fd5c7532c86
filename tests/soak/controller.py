"""The controller of a soak: `python -m tests.soak.controller STATE_DIR`.

It is the real one on the real local provider. Three things differ: nodes have no torch to import, because no worker of
a soak uses it; the market is drawn from the seed of the settings: supply falls (with notice) and returns, and prices
move, until nothing is to go wrong any more; and scipy.special is imported at the start: else the first plan that asks
how long spot nodes last does it, whenever that is, and those megabytes are no growth.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from sublet.api import main as api_main
from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.market.replay import MarketChange
from sublet.market.spot import SpotTrace
from sublet.runtime.group import states
from sublet.runtime.providers.local import build as local_build
from sublet.runtime.settings import Settings
from tests.chaos.controller import import_nothing
from tests.soak.world import MARKET_ENDS

MOST = 6  # spot nodes at once
EVERY_S = 180.0  # cloud: the market moves about so often
SILENT_S = 10.0  # wall: a session that says nothing for so long hangs; a minute would leave a soak with few hangs


def moving_market(settings: Settings, _traces: Sequence[SpotTrace], offers: Sequence[Offer]) -> Iterator[MarketChange]:
    """The same for every controller of one seed, so that the next one finds its place in it; calm at its end."""
    rng = random.Random(f"market {settings.seed}")
    spot = next(offer for offer in offers if offer.market is Market.SPOT)
    ends_s = float((Path(settings.state_dir) / MARKET_ENDS).read_text(encoding="ascii"))
    yield AvailabilityChanged(0.0, spot.id, MOST)
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1.0 / EVERY_S)) < ends_s:
        if rng.random() < 0.5:
            yield AvailabilityChanged(at_s, spot.id, rng.choice((0, 1, 2, 3, 4, MOST, MOST, MOST)))
        else:
            share = rng.uniform(0.5, 1.02)  # of its cap: above that the market takes all its nodes back
            yield PriceChanged(at_s, spot.id, Price(round(spot.price.micro_usd_per_h * share)))
    yield PriceChanged(ends_s, spot.id, spot.price)
    yield AvailabilityChanged(ends_s, spot.id, MOST)


def main() -> None:
    """Be a controller."""
    import_nothing()
    importlib.import_module("scipy.special")
    local_build.local_supply = moving_market  # type: ignore[assignment]
    states.SILENT_S = SILENT_S
    api_main.main()


if __name__ == "__main__":
    main()
