"""One window of the replay of an advised cluster: where it begins, what is lost there, and when the job ends."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.advise.adviser import Ask, ClusterChoice
from sublet.advise.losses import Capacity, neighbours
from sublet.errors import InvalidValue
from sublet.market.spot import SpotTrace
from sublet.solve.arrays import Floats, Ints

# F falls of a place

MOST_RECLAIMS = 200  # replayed in one window; what is left then goes on at the pace so far, known to a few per cent


# ---------------------------------------------------------------------- where and when a window begins


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A zone, or several, as a cluster that needs so many spot nodes sees it."""

    t_s: list[float]
    enough: list[bool]  # from t_s on
    open_s: list[float]  # when it begins to have enough
    fall_s_F: Floats
    share_F: Floats  # of the nodes of its zone, lost in each fall
    slots_F: Ints  # nodes of the cluster that are meant to be in that zone
    end_s: float

    @classmethod
    def of(cls, found: Capacity, nodes: int, times: float) -> Place:
        """With so many times the losses of the trace."""
        enough = found.enough_for(nodes)
        opens = enough & ~np.concatenate(([False], enough[:-1]))
        slots = [nodes // found.zones + (zone < nodes % found.zones) for zone in range(found.zones)]
        return cls(
            t_s=found.t_s_T.tolist(),
            enough=enough.tolist(),
            open_s=found.t_s_T[opens].tolist(),
            fall_s_F=found.fall_s_F,
            share_F=np.minimum(times * found.share_F, 1.0),
            slots_F=np.array(slots, dtype=np.int64)[found.zone_F],
            end_s=found.end_s,
        )

    def wait_s(self, at_s: float) -> float:
        """From an instant of the trace, which starts again when it has ended, until there are enough."""
        local_s = at_s % self.end_s
        row = bisect_right(self.t_s, local_s) - 1
        if row >= 0 and self.enough[row]:
            return 0.0
        later = bisect_right(self.open_s, local_s)
        return (self.open_s[later] if later < len(self.open_s) else self.end_s + self.open_s[0]) - local_s

    def losses(self, start_s: float, rng: np.random.Generator) -> Iterator[tuple[float, int]]:
        """Seconds after the start, and how many nodes are lost then; at the end of every round none are."""
        zero_s = -start_s
        while True:
            lost_F = rng.binomial(self.slots_F, self.share_F)
            for fall in np.flatnonzero(lost_F).tolist():
                if (at_s := zero_s + float(self.fall_s_F[fall])) > 0.0:
                    yield at_s, int(lost_F[fall])
            zero_s += self.end_s
            yield zero_s, 0


def starts(
    traces: Sequence[SpotTrace], times: Sequence[float], choice: ClusterChoice, windows: int, rng: np.random.Generator
) -> list[tuple[Place, float]]:
    """Places and moments, spread evenly over the time with enough nodes of each trace."""
    found = []
    for at, trace in enumerate(traces):
        groups = neighbours(trace, max(len(choice.spots), 1))
        merged = [Capacity.of(trace, names, together=choice.together) for names in groups]
        places = [Place.of(each, choice.nodes - choice.steady, times[at]) for each in merged]
        spans = [
            (place, t_s, end_s)
            for place in places
            for t_s, end_s, enough in zip(place.t_s, [*place.t_s[1:], place.end_s], place.enough, strict=True)
            if enough and end_s > t_s
        ]
        if not spans:
            raise InvalidValue("trace", trace.name, "one in which nodes can be held at some time")
        upto_s = np.cumsum([end_s - t_s for _, t_s, end_s in spans])
        count = len(range(at, windows, len(traces)))
        for place_s in (np.arange(count) + rng.random(count)) / max(count, 1) * upto_s[-1]:
            span = min(int(np.searchsorted(upto_s, place_s, side="right")), len(spans) - 1)
            where, _, end_s = spans[span]
            found.append((where, end_s - float(upto_s[span] - place_s)))
    return found


# ---------------------------------------------------------------------- one window


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedJob:
    """A job on its cluster."""

    nodes: int
    spot_nodes: int
    pace: tuple[float, ...]  # with 0 to all nodes, by that with all
    provision_s: float
    notice_s: float
    restart_s: float
    every_s: float  # infinite where a checkpoint is written at the notice
    write_s: float
    copied_s: float  # between two copies of them to object storage
    peers: bool  # checkpoints are in the memory of nodes that may be lost together

    @classmethod
    def of(cls, choice: ClusterChoice, ask: Ask) -> ReplayedJob:
        """The facts of a cluster for the replay."""
        return cls(
            nodes=choice.nodes,
            spot_nodes=choice.nodes - choice.steady,
            pace=(0.0, *(rate / choice.rate for rate in choice.rates)),
            provision_s=ask.provision_s,
            notice_s=choice.spots[0].notice_s,
            restart_s=ask.profile.restart_s,
            every_s=choice.checkpoint_every_s,
            write_s=choice.checkpoint_write_s,
            copied_s=choice.copied_every_s,
            peers=choice.keeper == "peers" and (len(choice.spots) == 1 or choice.together),
        )

    @property
    def first_s(self) -> float:
        """Until it trains."""
        return self.provision_s + self.restart_s

    @property
    def boot_s(self) -> float:
        """Until nodes are there that were asked for at the notice, counted from the loss."""
        return max(0.0, self.provision_s - self.notice_s)

    def kept_s(self, trained_s: float) -> float:
        """The part of the time since it was ready that is in a checkpoint if nodes are lost now."""
        if math.isinf(self.every_s):
            return trained_s
        return trained_s // (self.every_s + self.write_s) * self.every_s

    def forgotten_s(self, done_s: float, taken: int, rng: np.random.Generator) -> float:
        """Work that a loss of a node and of its peer costs beyond the last checkpoint."""
        both = self.peers and rng.random() * (self.nodes - 1) < taken * (taken - 1)
        return done_s % self.copied_s if both else 0.0


def replay_waiting(
    job: ReplayedJob, train_s: float, place: Place, start_s: float, rng: np.random.Generator
) -> tuple[float, float, int]:
    """Waiting after a loss: when it ends, the node-seconds that spot nodes were gone, and how often some were taken."""
    left_s, ready_s, back_s, away_s = train_s, job.first_s, 0.0, 0.0
    held, reclaims = job.spot_nodes, 0
    for at_s, taken in place.losses(start_s, rng):
        end_s = ready_s + left_s + _writes(left_s, job) * job.write_s
        if end_s <= at_s:
            return end_s, away_s, reclaims
        if not taken:
            continue
        if reclaims == MOST_RECLAIMS:
            break
        reclaims += 1
        left_s -= job.kept_s(max(at_s - ready_s, 0.0))
        left_s += job.forgotten_s(train_s - left_s, taken, rng)
        if at_s >= back_s:  # those lost before have been replaced
            held = job.spot_nodes
        lost = min(taken, held)
        held -= lost
        back_s = at_s + place.wait_s(start_s + at_s)
        away_s += lost * (back_s - at_s)
        ready_s = back_s + job.boot_s + job.restart_s + job.write_s
    return _onward(train_s, left_s, ready_s, away_s, reclaims)


def replay_going_on(
    job: ReplayedJob, train_s: float, place: Place, start_s: float, rng: np.random.Generator
) -> tuple[float, float, int]:
    """The same, but going on with the nodes that are left; those that are lost come back one loss after the other."""
    left_s, ready_s, away_s, reclaims = train_s, job.first_s, 0.0, 0
    held = job.spot_nodes
    coming: list[tuple[float, int]] = []  # when, and how many
    for at_s, taken in place.losses(start_s, rng):
        while True:  # until the next loss, or the next nodes that come
            turn_s = min(at_s, coming[0][0]) if coming else at_s
            pace = job.pace[job.nodes - job.spot_nodes + held]
            work_s = left_s / pace if pace > 0 else math.inf
            if (end_s := ready_s + work_s + _writes(work_s, job) * job.write_s) <= turn_s:
                return end_s, away_s, reclaims
            if turn_s == at_s:
                break
            # A checkpoint is written before the others are taken in, so nothing is redone.
            trained_s = max(turn_s - ready_s, 0.0)
            cycles, rest_s = divmod(trained_s, job.every_s + job.write_s)
            left_s -= pace * min(cycles * job.every_s + min(rest_s, job.every_s), work_s)
            held += coming.pop(0)[1]
            ready_s = max(ready_s, turn_s) + job.restart_s + 2.0 * job.write_s
        lost = int(rng.hypergeometric(held, job.spot_nodes - held, min(taken, job.spot_nodes))) if taken and held else 0
        if not lost:
            continue
        if reclaims == MOST_RECLAIMS:
            break
        reclaims += 1
        left_s -= pace * job.kept_s(max(at_s - ready_s, 0.0))
        left_s += job.forgotten_s(train_s - left_s, lost, rng)
        held -= lost
        wait_s = place.wait_s(start_s + at_s)
        away_s += lost * wait_s
        coming.append((at_s + wait_s + job.boot_s, lost))
        coming.sort()
        ready_s = at_s + job.restart_s + job.write_s
    return _onward(train_s, left_s, ready_s, away_s, reclaims)


def _writes(work_s: float, job: ReplayedJob) -> float:
    """Checkpoints during so much work; the last needs none."""
    return max(math.ceil(work_s / job.every_s) - 1, 0) if math.isfinite(work_s) else 0.0


def _onward(train_s: float, left_s: float, ready_s: float, away_s: float, reclaims: int) -> tuple[float, float, int]:
    """The rest after many reclaims goes on at the pace so far."""
    pace = (train_s - left_s) / ready_s
    if pace <= 0.0:
        return math.inf, 0.0, reclaims
    grown = train_s / (train_s - left_s)
    return ready_s + left_s / pace, away_s * grown, round(reclaims * grown)
