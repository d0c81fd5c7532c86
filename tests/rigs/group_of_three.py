"""Three real workers over gloo who make a few steps with torch's own group: their losses, and the noise of each."""

from __future__ import annotations

from sublet.train.link.peers import PeerGroup
from sublet.train.numerics.gradients import Control
from sublet.train.sessions.options import Options
from sublet.train.sessions.steps import Steps
from sublet.train.sessions.turns import Turns
from tests.rigs.little_network import adam, data, network
from tests.rigs.ranks import in_group

WORLD, STEPS = 3, 3


def _over_some(out, x, y):
    """A sum over the samples whose first number is positive, and how many these are."""
    some = x[:, 0] > 0
    return ((out - y)[some] ** 2).sum(), None, int(some.sum())


LOSSES = {  # loss, whose it is, and what it is a sum over
    "mean": lambda out, x, y: (((out - y) ** 2).mean(),),
    "sum": lambda out, x, y: (((out - y) ** 2).sum(),),
    "counted": _over_some,
}


def together(*cases):
    """Of each case (samples of a batch, reduction) what each worker has found."""
    return list(zip(*in_group(WORLD, _of_cases, cases), strict=True))


def _of_cases(rank, cases):
    return [trained(PeerGroup(rank=rank, world=WORLD), *case) for case in cases]


def trained(group, samples, reduction):
    """The losses of some steps of so many samples, as the readings of the session have them, and the noise."""
    model, losses = network().eval(), []
    options = Options(global_batch=samples, seed=0, reduction=reduction)
    steps = Steps(model, Turns(model, adam(model)), data(), options)
    steps.guard()
    steps.settle_in(group)
    while steps.progress.steps < STEPS:
        for x, y in steps.batches(group, lambda: False):
            steps.step(*LOSSES[reduction](model(x), x, y))
        losses.append(steps.readings.numbers[Control.LOSS])
    noise = steps.progress.noise
    steps.release()
    return losses, (noise.count, noise.signal, noise.scatter)
