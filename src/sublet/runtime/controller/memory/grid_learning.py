"""Measurements of a job that is cut while it runs: how fast each grid was, and how long each change took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sublet.domain.shape import Grid
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.live_grids import GUESSED_ATOMS, LiveGrids, depths_of
from sublet.perf.migration import BYTES_PER_PARAM, Pause
from sublet.perf.part_memory import PartMemory
from sublet.runtime.jobs.bounds import MOST_STAGES
from sublet.wire.messages import Joined, Stepped

MOST_PAUSES = 50
FORGETS = 0.3  # weight of the newest measurement of a grid
WARM_REPORTS = 5  # of a grid, before what it does counts as measured
WORTH_TELLING = 0.25  # relative change of a rate
LONGEST_S = 86_400.0  # of a change: what a worker says beyond it is not learned from
WITHIN, RESTORED = "within", "restored"
KINDS = (WITHIN, "between", "depth", RESTORED)  # of what workers saw, the last is what it was


def kind_of(joined: Collection[Joined]) -> str:
    """Of a change, as its workers saw it: each knows what it received and gave; "" = it is none."""
    kinds = {message.kind for message in joined if message.kind in KINDS}
    return max(kinds, key=KINDS.index, default="")


@dataclass(slots=True)
class Changes:
    """Of one kind."""

    count: int = 0
    size_bytes: int = 0  # that all workers received
    seconds: float = 0.0  # wall, without training


@dataclass(slots=True)
class GridLearning:
    """Of one job. Rates are samples a second on the wall, by kind of GPU and grid."""

    rates: dict[tuple[str, int, int], float] = field(default_factory=dict)
    pauses: list[Pause] = field(default_factory=list)
    blocks: tuple[int, ...] = ()
    memory: PartMemory = field(default_factory=PartMemory)
    atoms: float = GUESSED_ATOMS
    changes: dict[str, Changes] = field(default_factory=dict)  # by kind
    units: dict[int, float] = field(default_factory=dict)  # s of a micro-batch: before the blocks, in each, after them
    _reports: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    _told: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def learn_step(self, report: Stepped, gpu: str, grid: Grid | None, rate: float) -> bool:
        """Learn from a report; True if the plan should hear of it."""
        if grid is None:
            return False
        key = (gpu, grid.copies, grid.parts)
        if report.profile is not None and report.profile.samples > 0:
            self.atoms = max(1.0, report.global_batch / report.profile.samples)
        self._reports[key] += 1
        old = self.rates.get(key, rate)
        self.rates[key] = old + max(FORGETS, 1.0 / self._reports[key]) * (rate - old)
        if self._reports[key] < WARM_REPORTS:
            return False
        told = self._told.get(key)
        if told is not None and abs(self.rates[key] / told - 1.0) <= WORTH_TELLING:
            return False
        self._told[key] = self.rates[key]
        return True

    def learn_memory(self, blocks: tuple[int, ...], memory: PartMemory) -> bool:
        """Learn what its group has heard of its size; True if the least number of parts is another one now."""
        before = self.least_parts
        self.blocks, self.memory = blocks or self.blocks, memory
        return self.least_parts != before

    @property
    def least_parts(self) -> int:
        """By memory, as far as anybody knows; where none fits, as many as there may be."""
        most = min(MOST_STAGES, len(self.blocks) or MOST_STAGES)
        return self.memory.least(self.blocks, most) or most

    def learn_units(self, report: Stepped) -> bool:
        """Times of units, as their workers say; True once all of them are known."""
        if report.atoms > 0:
            self.atoms = float(report.atoms)
        if len(report.units) != len(self.blocks) + 2:
            return False
        knew = self._all_units()
        for unit, seconds in enumerate(report.units):
            if 0.0 < seconds < LONGEST_S:
                old = self.units.get(unit, seconds)
                self.units[unit] = old + FORGETS * (seconds - old)
        return bool(self._all_units()) and not knew

    def _all_units(self) -> tuple[float, ...]:
        """To two digits, so that what changes little is worked out once; () until all are known."""
        known = [self.units.get(unit) for unit in range(len(self.blocks) + 2)]
        return tuple(float(f"{each:.2g}") for each in known if each is not None) if None not in known else ()

    def learn_change(self, joined: Collection[Joined], grid: Grid | None) -> Pause | None:
        """All are in a new grid: what that took, if it was a change of an old one."""
        kind = kind_of(joined)
        if grid is None or not kind:
            return None
        pause = Pause(
            wide=grid.copies,
            deep=grid.parts,
            grow=any(message.source == "peer" and message.moved_bytes > 0 for message in joined) and kind != WITHIN,
            params=max(message.moved_bytes for message in joined) / BYTES_PER_PARAM,
            seconds=min(max(message.met_s + message.state_s + message.formed_s for message in joined), LONGEST_S),
            regrouped=kind == WITHIN,
        )
        change = self.changes.setdefault(kind, Changes())
        change.count += 1
        change.size_bytes += sum(message.moved_bytes for message in joined)
        change.seconds += pause.seconds
        if kind != RESTORED:
            self.pauses = [*self.pauses, pause][-MOST_PAUSES:]
        return pause

    def speed(
        self, *, stages: int, most_gpus: int, sizes: tuple[int, ...], guess: float, unit: float, speedup: float
    ) -> tuple[Gridded, LivePauses] | None:
        """For the plan: its speed in units of `unit` samples a second, and its pauses; None where no grid can be.

        Kinds of GPU are not told apart: of a grid that ran on several, the mean counts.
        """
        by_grid: dict[tuple[int, int], list[float]] = {}
        for (gpu, copies, parts), rate in sorted(self.rates.items()):
            if self._reports[gpu, copies, parts] >= WARM_REPORTS:
                by_grid.setdefault((copies, parts), []).append(rate * unit)
        known = LiveGrids(
            most_gpus=most_gpus,
            depths=depths_of(stages, most_gpus, self.blocks, MOST_STAGES, self.least_parts),
            guess=guess,
            measured=tuple((grid, sum(rates) / len(rates)) for grid, rates in by_grid.items()),
            atoms=self.atoms,
            blocks=self.blocks,
            units=self._all_units(),
            pauses=tuple(self.pauses),
            speedup=speedup,
            sizes=sizes,
        )
        profile = known.profile()
        return None if profile is None else (Gridded(profile), LivePauses(profile))

    def facts(self) -> dict[str, Any]:
        """Facts that a restart must find again."""
        return {
            "rates": [[*key, rate] for key, rate in self.rates.items() if self._reports[key] >= WARM_REPORTS],
            "pauses": [asdict(pause) for pause in self.pauses],
            "blocks": list(self.blocks),
            "memory": self.memory.facts(),
            "atoms": self.atoms,
            "units": [[unit, seconds] for unit, seconds in self.units.items()],
            "changes": {kind: asdict(change) for kind, change in self.changes.items()},
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> GridLearning:
        """From what `facts` gave; empty for a job of before."""
        rates = {(gpu, copies, parts): rate for gpu, copies, parts, rate in facts.get("rates", ())}
        return cls(
            rates=rates,
            pauses=[Pause(**pause) for pause in facts.get("pauses", ())],
            blocks=tuple(facts.get("blocks", ())),
            memory=PartMemory.from_facts(facts.get("memory", {})),
            atoms=facts.get("atoms", GUESSED_ATOMS),
            units=dict(facts.get("units", ())),
            changes={kind: Changes(**change) for kind, change in facts.get("changes", {}).items()},
            _reports=Counter(dict.fromkeys(rates, WARM_REPORTS)),
            _told=dict(rates),
        )
