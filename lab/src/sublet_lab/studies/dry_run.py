"""A controller that could rent every kind of GPU that a job names: what `sublet submit --dry-run` answers for it.

It is the shipped controller with the shipped policy, without limits, over a market of these kinds alone, each on nodes
of `SIZES` GPUs, spot and on demand. Jobs that name the same kinds ask the same one. It never starts: nothing is rented,
and no agent is heard. Its nodes are machines of their own, as on a cloud: working directories would travel, containers
are allowed. Whether a bucket is there is not asked: the answer would be about the reader's accounts, not about the job
file. Nor are files looked at that only their author has.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sublet.domain.budget import UNLIMITED
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import SubletError
from sublet.runtime.clock import Clock
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.host import HostServices, Options
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import policy_from
from sublet.runtime.engines.protocol import Hear
from sublet.runtime.file_sync.packing import travelling
from sublet.runtime.jobs.spec import JobSpec, spec_from_json, spec_to_json
from sublet.runtime.providers.protocol import RentedNode, TellMarket
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store
from sublet.wire.messages import ToAgent

SIZES = (1, 2, 4, 6, 8, 16)  # GPUs of a node; six are on AWS's inf2.24xlarge, which one file asks for
USD_PER_GPU_H = 1.0  # whatever it is: there is no limit, and only whether is asked
ANY = "L4"  # for jobs that name no kind


def dry_runs(specs: Sequence[JobSpec]) -> list[str]:
    """For each, why it is refused; "" where it is accepted, as `sublet submit --dry-run` ends with 0."""
    by_kinds = dict[tuple[str, ...], list[int]]()
    for number, spec in enumerate(specs):
        by_kinds.setdefault(spec.accelerators, []).append(number)
    answers = [""] * len(specs)
    for kinds, numbers in by_kinds.items():
        for number, answer in zip(numbers, _ask(market_of(kinds), [specs[each] for each in numbers]), strict=True):
            answers[number] = answer
    return answers


def market_of(kinds: Sequence[str]) -> list[Offer]:
    """Every kind of these, on nodes of every size, on both markets; some kind where any will do."""
    return [
        Offer(
            id=f"{kind}x{size}-{market}",
            gpu=kind,
            gpus_per_node=size,
            market=market,
            price=Price.from_usd_per_h(size * USD_PER_GPU_H),
        )
        for kind in kinds or [ANY]
        for size in SIZES
        for market in Market
    ]


def _ask(offers: Sequence[Offer], specs: Sequence[JobSpec]) -> list[str]:
    async def answers(api: ControllerApi) -> list[str]:
        return [await _answer(api, spec) for spec in specs]

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "log.sqlite")
        try:
            return asyncio.run(answers(_controller(Path(folder), store, offers)))
        finally:
            store.close()


async def _answer(api: ControllerApi, spec: JobSpec) -> str:
    try:
        found = await api.dry_run(spec_from_json(spec_to_json(spec, secrets=True)))  # as it comes over the line
    except SubletError as error:
        return str(error).splitlines()[0]
    return "" if found["feasible"] else f"infeasible: {found['reason']}"


def _controller(folder: Path, store: Store, offers: Sequence[Offer]) -> ControllerApi:
    settings, nobody = Settings(state_dir=str(folder)), _Nobody(offers)
    host, options = HostServices(state_dir=folder, clock=Clock()), Options(budget=UNLIMITED, elsewhere=True)
    controller = Controller(store, nobody, nobody, policy_from(settings), host=host, options=options)
    controller.sync.buckets, controller.sync.looker = _supposed, _look
    return ControllerApi(controller, settings)


async def _supposed(spec: JobSpec, *, make: bool) -> list[str]:  # noqa: ARG001 - as `check_buckets`
    return []


def _look(folder: Path, mounts: Mapping[str, Path], *, besides: Collection[Path] = ()) -> dict[str, Path]:
    there = {place: source for place, source in mounts.items() if source.exists()}
    return travelling(folder, there, besides=besides)


class _Nobody:
    """A provider that has offers and rents nothing, and an engine without agents."""

    lease_s = 30.0

    def __init__(self, offers: Sequence[Offer]) -> None:
        self.offers = tuple(offers)

    def price_age_s(self) -> float | None:
        return 0.0

    async def open(self, tell: TellMarket | Hear) -> None:
        raise NotImplementedError

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        raise NotImplementedError

    async def release(self, node_id: str) -> None:
        raise NotImplementedError

    async def list(self) -> list[RentedNode]:
        return []

    def expect(self, node_id: str, token: str) -> None:
        raise NotImplementedError

    def send(self, node_id: str, message: ToAgent) -> bool:  # noqa: ARG002 - as every engine
        return False

    async def close(self) -> None:
        """Nothing was opened."""
