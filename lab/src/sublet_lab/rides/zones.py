"""One job in several zones: where to run is chosen together with the grid.

A site is a zone, the zones of a region together, or all of a few zones together. A pipeline lies in one zone, so that a
stage boundary never crosses a border; pipelines of one grid may lie in several, and then the sum of their gradients
crosses, over the slower link and for money. To another site the state is sent over that link, and instances there have
to boot.

A zone's trouble is its own: what is lost in one hits only the pipelines there. The future is weighed as a mixture of
such losses, one zone at a time, at their recent pace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from sublet.domain.quantity import at_least, positive, whole
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.perf.migration import BYTES_PER_PARAM
from sublet.solve.arrays import Bools, Floats, Ints
from sublet.solve.expectation import Loss, expected_moves
from sublet.solve.lookahead import Ahead, best_path

Have = tuple[int, ...]  # instances in each zone
GRADIENT_BYTES = 4  # of a parameter
FEW_ZONES = 3  # so many may be a site although they are in different regions


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Between zones of a region, and between regions.

    A p3.2xlarge sends 0.9 GB/s within its region, as Parcae measured; what passes between regions is taken to be 1
    Gb/s. Traffic is USD 0.02 per GB both ways, what AWS lists for either.
    """

    near_bytes_per_s: float = 0.9e9
    far_bytes_per_s: float = 0.125e9
    usd_per_gb: float = 0.02
    boot_s: float = 45.0

    def __post_init__(self) -> None:
        positive("near_bytes_per_s", self.near_bytes_per_s)
        positive("far_bytes_per_s", self.far_bytes_per_s)
        at_least("usd_per_gb", self.usd_per_gb, 0.0)
        at_least("boot_s", self.boot_s, 0.0)


def region_of(zone: str) -> str:
    """A zone's name without its letter.

    >>> region_of("us-east-2b"), region_of("us-central1-a"), region_of("z")
    ('us-east-2', 'us-central1', 'z')
    """
    return re.sub(r"(?<=\d)-?[a-z]$", "", zone)


class ZonedJob:
    """A job by states: suspended, or a grid at a site. `most_Z` is how many instances a zone can have at all.

    Grids whose rent and traffic are above `most_usd` a sample are left out: gradients that cross borders at every step
    can cost more than instances on demand would.
    """

    def __init__(
        self,
        job: SpotJob,
        zones: Sequence[str],
        most_Z: Sequence[int],
        *,
        batch: int,
        links: Links,
        usd_per_h: float,
        most_usd: float = math.inf,
    ) -> None:
        whole("batch", batch, 1)
        if len(zones) != len(most_Z) or not zones or len(set(zones)) < len(zones):
            raise InvalidValue("zones", zones, f"one or more, each once, as many as the {len(most_Z)} counts")
        self.job, self.zones, self.links = job, tuple(zones), links
        self.sites = _sites(zones)
        far_X = [len({region_of(zones[zone]) for zone in site}) > 1 for site in self.sites]
        rows: list[tuple[int, int, float, float]] = [(-1, SUSPENDED, 0.0, 0.0)]
        for at, (site, far) in enumerate(zip(self.sites, far_X, strict=True)):
            for config, (wide, deep) in enumerate(job.grids):
                fits = sum(most_Z[zone] // deep for zone in site) if deep else 0
                if config == SUSPENDED or wide > fits or (len(site) > 1 and wide == 1):
                    continue
                rate, traffic_usd_per_s = self._spread(config, min(wide, len(site)), batch, far=far)
                if wide * deep * usd_per_h / SECONDS_PER_H + traffic_usd_per_s <= most_usd * rate or len(site) == 1:
                    rows.append((at, config, rate, traffic_usd_per_s))
        self.site_S = np.array([row[0] for row in rows], dtype=np.intp)
        self.config_S = np.array([row[1] for row in rows], dtype=np.intp)
        self.rate_S = np.array([row[2] for row in rows])
        self.traffic_usd_per_s_S = np.array([row[3] for row in rows])
        self.use_S: Ints = job.use_C[self.config_S]
        self._kept: dict[tuple[Have, Have], Floats] = {}
        self._parts: dict[tuple[int, Have, Have], Floats] = {}

    def _spread(self, config: int, parts: int, batch: int, *, far: bool) -> tuple[float, float]:
        """Samples per second with pipelines in so many zones, and dollars per second for their gradients."""
        rate = float(self.job.rate_C[config])
        if parts == 1:
            return rate, 0.0
        stages = self.job.costs.layers.stages(self.job.grids[config][1])
        bytes_per_s = self.links.far_bytes_per_s if far else self.links.near_bytes_per_s
        sum_s = 2.0 * (parts - 1) / parts * GRADIENT_BYTES * max(stages) / bytes_per_s
        step_s = batch / rate + sum_s
        gigabytes = 2.0 * (parts - 1) * GRADIENT_BYTES * sum(stages) / 1e9
        return batch / step_s, gigabytes * self.links.usd_per_gb / step_s

    # ------------------------------------------------------------------ what fits

    def fits_S(self, have: Have) -> Bools:  # noqa: N802 - its axis
        """Which states can be had with so many instances in each zone."""
        deep_C = np.maximum(self.job.moves.deep_C, 1)
        pipes_XC = np.stack([sum(have[zone] // deep_C for zone in site) for site in self.sites])
        wide_S = self.job.moves.wide_C[self.config_S]
        return np.asarray((self.config_S == SUSPENDED) | (wide_S <= pipes_XC[self.site_S, self.config_S]))

    def fastest(self, have: Have) -> int:
        """The state with the most samples per second."""
        return int(np.where(self.fits_S(have), self.rate_S, -1.0).argmax())

    # ------------------------------------------------------------------ what changes cost

    def pauses_s(self, was: Have, now: Have) -> Floats:
        """Expected seconds without training between all states as the zones go from was to now."""
        if (was, now) not in self._kept:
            table_SS = np.broadcast_to(self._move_s_SS, (len(self.site_S),) * 2).copy()
            for at in range(len(self.sites)):
                rows = np.flatnonzero(self.site_S == at)
                configs = self.config_S[rows]
                table_SS[np.ix_(rows, rows)] = self._within_s(at, was, now)[np.ix_(configs, configs)]
            self._kept[was, now] = np.where(self.fits_S(now), table_SS, np.inf)
        return self._kept[was, now]

    @cached_property
    def _move_s_SS(self) -> Floats:  # noqa: N802 - its axes
        """From one site to another: a new start there, of instances that boot, with state that is sent."""
        moves, layers = self.job.moves, self.job.costs.layers
        start_S = (moves.grow_C + moves.spread_C + moves.wake_s)[self.config_S]
        largest_S = np.array([max(layers.stages(self.job.grids[each][1])) if each else 0.0 for each in self.config_S])
        regions = [{region_of(self.zones[zone]) for zone in site} for site in self.sites]
        far_XX = np.array([[not one & other for other in regions] for one in regions])
        far_SS = far_XX[self.site_S[:, None], self.site_S]
        bytes_per_s_SS = np.where(far_SS, self.links.far_bytes_per_s, self.links.near_bytes_per_s)
        table_SS = start_S + BYTES_PER_PARAM * largest_S / bytes_per_s_SS + self.links.boot_s
        table_SS[SUSPENDED] = start_S
        table_SS[:, SUSPENDED] = 0.0
        return np.asarray(table_SS)

    def _within_s(self, at: int, was: Have, now: Have) -> Floats:
        """Between the grids of a site."""
        site = self.sites[at]
        if len(site) == 1:
            return self.job.pauses_s(was[site[0]], now[site[0]])
        key = (at, tuple(was[zone] for zone in site), tuple(now[zone] for zone in site))
        if key not in self._parts:
            hit = [zone for zone in site if now[zone] < was[zone]]
            self._parts[key] = self._after_s(site, was, now, hit) if hit else self.job.pauses_s(0, 0, beyond=True)
        return self._parts[key]

    def _after_s(self, site: Sequence[int], was: Have, now: Have, hit: Sequence[int]) -> Floats:
        """After losses in some zones of a site: only the pipelines there are within reach."""
        instances, lost = sum(was[zone] for zone in hit), sum(was[zone] - now[zone] for zone in hit)
        reach_C = self._pipelines_C(site, was, hit)
        table_CC = np.zeros((len(reach_C),) * 2)
        for pipelines in sorted(set(reach_C.tolist())):
            from_C = reach_C == pipelines
            loss = Loss(instances=instances, lost=lost, pipelines=pipelines)
            table_CC[from_C] = expected_moves(self.job.moves, [loss], from_C=from_C)[from_C]
        return table_CC

    def _pipelines_C(self, site: Sequence[int], have: Have, hit: Sequence[int]) -> Ints:  # noqa: N802 - its axis
        """How many pipelines of each grid lie in some of a site's zones; the fullest zone is filled first."""
        left_C = self.job.moves.wide_C.copy()
        deep_C = np.maximum(self.job.moves.deep_C, 1)
        there_C = np.zeros_like(left_C)
        for zone in sorted(site, key=lambda zone: -have[zone]):
            here_C = np.minimum(left_C, have[zone] // deep_C)
            left_C = left_C - here_C
            if zone in hit:
                there_C = there_C + here_C
        return there_C

    # ------------------------------------------------------------------ what is to come

    def live_S(self, have: Have, risk: Sequence[tuple[float, int]], ahead_s: float) -> Floats:  # noqa: N802 - its axis
        """Expected samples per second over so long: a mixture of losses in one zone at a time.

        `risk` has a chance and a count for each zone. After a loss the best of all changes is made, whatever it pauses.
        """
        chances = [chance if min(lost, here) else 0.0 for (chance, lost), here in zip(risk, have, strict=True)]
        none = float(np.prod([1.0 - chance for chance in chances]))
        scale = (1.0 - none) / max(sum(chances), 1e-9)
        live_S = self.rate_S * none
        for zone, chance in enumerate(chances):
            if chance:
                after = tuple(max(0, here - risk[zone][1]) if at == zone else here for at, here in enumerate(have))
                pause_SS = self.pauses_s(have, after)
                left_SS = np.where(
                    pause_SS < ahead_s, self.rate_S * (1.0 - np.minimum(pause_SS, ahead_s) / ahead_s), 0.0
                )
                live_S += chance * scale * np.minimum(left_SS.max(axis=1), self.rate_S)  # no loss makes one faster
        return live_S


def _sites(zones: Sequence[str]) -> list[tuple[int, ...]]:
    every = tuple(range(len(zones)))
    by_region: dict[str, list[int]] = {}
    for zone in every:
        by_region.setdefault(region_of(zones[zone]), []).append(zone)
    sites = [(zone,) for zone in every] + [tuple(each) for each in by_region.values() if len(each) > 1]
    if 1 < len(zones) <= FEW_ZONES and every not in sites:
        sites.append(every)
    return sites


# ---------------------------------------------------------------------- looking ahead


def zoned_look(job: ZonedJob, was: Have, now: Have, state: int, left_s: float, *, steps: int, live_S: Floats) -> int:
    """The state to go to if what is there stays, but for what the mixture of losses takes on the average."""
    stay = job.pauses_s(now, now)
    ahead = Ahead(
        rate_C=live_S,
        pause_s=[job.pauses_s(was, now), *([stay] * (steps - 1))],
        step_s=job.job.step_s,
        again_C=job.job.moves.shrink_C[job.config_S],
    )
    return best_path(ahead, state, left_s=left_s).config_H[0]


def zoned_oracle(job: ZonedJob, have_T: Sequence[Have]) -> tuple[int, ...]:
    """The best path for a market known in advance."""
    points = [(0,) * len(job.zones), *have_T]
    ahead = Ahead(
        rate_C=job.rate_S,
        pause_s=[job.pauses_s(was, now) for was, now in pairwise(points)],
        step_s=job.job.step_s,
        again_C=job.job.moves.shrink_C[job.config_S],
    )
    return best_path(ahead, SUSPENDED).config_H
