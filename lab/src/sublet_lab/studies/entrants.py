"""The policies that the study of clusters compares, and what each is told of speeds and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sublet.domain.plan import Policy
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.policies.equal import Equal
from sublet.policies.fifo import Fifo
from sublet.policies.mip.policy import Mip
from sublet.policies.price.decision import WorkBelief
from sublet.policies.price.policy import Price
from sublet_lab.rivals.fitness import by_age
from sublet_lab.rivals.greedy.speed import GreedySpeed
from sublet_lab.rivals.las import Las
from sublet_lab.rivals.max_speedup import MaxSpeedup
from sublet_lab.rivals.optimus import Optimus
from sublet_lab.rivals.pollux import Pollux
from sublet_lab.rivals.sia.policy import Sia
from sublet_lab.rivals.srtf import Srtf
from sublet_lab.rivals.tiresias import Tiresias
from sublet_lab.rivals.vacate_first import VacateFirst
from sublet_lab.sia_learned import Learned
from sublet_lab.studies.learning import LearnsSpeeds
from sublet_lab.studies.peers import (
    Setting,
    pollux_as_published,
    sia_as_published,
)

PRICE = "price"
DECLARED, LEARNED, PAST, BLIND = "declared", "learned by group", "none", "none, all alike"
PRICES = {  # the same policy, by what it is told of sizes
    PRICE: (WorkBelief.DECLARED, DECLARED),
    "price, sizes learned": (WorkBelief.LEARNED, LEARNED),
    "price, no sizes": (WorkBelief.PAST, PAST),
    "price, blind": (WorkBelief.NOTHING, BLIND),
}
FREE = {"64 T4": ("pollux, free", "sia, free"), "64 mixed": ("sia, free",)}  # rivals that know and may do the same
LEARNERS = {name: tuple(f"{rival.partition(',')[0]}, learns" for rival in rivals) for name, rivals in FREE.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A policy, and what it is told."""

    name: str
    policy: Policy
    sizes: str = PAST
    speeds: str = "all"
    in_rounds: bool = False  # it decides every 60 s, as its authors have it; else at every event


def contenders(setting: Setting) -> list[Entrant]:
    """Rivals as published and freed, and `price`, that know all speeds."""
    free: dict[str, Policy] = {"pollux, free": Pollux(discount=by_age), "sia, free": Sia(discount=by_age)}
    found = [Entrant(name=name, policy=VacateFirst(each), in_rounds=True) for name, each in free.items()]
    told: dict[str, Policy] = {
        "pollux, told sizes": Pollux(),
        "sia, told sizes": Sia(),
    }  # they favour jobs that end soon
    found += [
        Entrant(name=name, policy=VacateFirst(each), sizes=DECLARED, in_rounds=True) for name, each in told.items()
    ]
    found.append(Entrant(name="pollux, as published", policy=pollux_as_published(), in_rounds=True))
    if len(setting.cloud.offers) > 1:
        learns = sia_as_published(setting)
        found.append(Entrant(name="sia, as published", policy=learns, speeds="learns", in_rounds=True))
    ours = PRICES.items()
    return found + [Entrant(name=name, policy=Price(knows=belief), sizes=sizes) for name, (belief, sizes) in ours]


def learners(setting: Setting) -> list[Entrant]:
    """Those that move freely when they know, and `price`: all learn, and at most double."""
    rivals: dict[str, Policy] = {"pollux, learns": Pollux(discount=by_age), "sia, learns": Sia(discount=by_age)}
    found = [
        Entrant(name=name, policy=VacateFirst(learns(setting, each)), speeds="learns", in_rounds=True)
        for name, each in rivals.items()
        if name in LEARNERS["64 T4" if len(setting.cloud.offers) == 1 else "64 mixed"]
    ]
    return found + [
        Entrant(name=name, policy=learns(setting, Price(knows=belief)), sizes=sizes, speeds="learns")
        for name, (belief, sizes) in PRICES.items()
        if sizes != BLIND
    ]


def learns(setting: Setting, policy: Policy) -> Policy:
    """It is told no speed: it sees what each job has learned of itself."""
    kinds = {offer.gpu: offer.gpus_per_node for offer in setting.cloud.offers}
    notebook = Learned(setting.batch, kinds, source="pollux" if len(kinds) == 1 else "sia")
    return LearnsSpeeds(policy=policy, notebook=notebook, growth=2.0)


OTHERS: Mapping[str, tuple[Policy, str]] = {  # and what they know of sizes
    "mip": (Mip(), DECLARED),
    "optimus": (Optimus(), DECLARED),
    "srtf": (Srtf(), DECLARED),
    "greedy-speed": (GreedySpeed(), PAST),
    "elastic-batch": (ElasticBatch(), PAST),
    "equal": (Equal(), PAST),
    "max-speedup": (MaxSpeedup(), PAST),
    "las": (Las(), PAST),
    "tiresias": (Tiresias(), PAST),
    "fifo": (Fifo(), PAST),
}
BY_SPEED = ("mip", "optimus", "greedy-speed", "elastic-batch", "max-speedup")  # the others use no speeds


def others(_setting: Setting) -> list[Entrant]:
    """The other policies, that know all speeds."""
    return [Entrant(name=name, policy=policy, sizes=sizes) for name, (policy, sizes) in OTHERS.items()]


def others_learn(setting: Setting) -> list[Entrant]:
    """The other policies that use speeds, and learn them."""
    return [
        Entrant(name=name, policy=learns(setting, policy), sizes=sizes, speeds="learns")
        for name, (policy, sizes) in OTHERS.items()
        if name in BY_SPEED
    ]
