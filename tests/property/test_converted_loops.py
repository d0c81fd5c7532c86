"""Training loops drawn from a grammar of lines: `sublet convert` refuses one, or it comes to the same to the bit.

Each is run as it is, converted, and converted and struck twice amid its epochs.
"""

from __future__ import annotations

import random
import re
import textwrap

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402
from tests.rigs.sizes import FULL  # noqa: E402

CHUNKS, EACH = (60, 8) if FULL else (9, 2)
STEPS = 12

HEAD = """import collections
import copy
import math
import random
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class Stopper:
    def __init__(self):
        self.seen = 0

    def __call__(self, value):
        self.seen += value
        return self.seen > 2


class Tally:
    def __init__(self):
        self.seen = 0.0

    def add(self, value):
        self.seen = 0.5 * self.seen + value

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def rates(opt, epoch):
    for group in opt.param_groups:
        group["lr"] = 0.02 / (epoch + 1)


def fall():
    for group in opt.param_groups:
        group["lr"] *= 0.9


def held():
    with torch.no_grad():
        return F.mse_loss(model(x), y).item()


torch.manual_seed(0)
x = torch.rand(16, 4)
y = 3 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
other = DataLoader(TensorDataset(x * 2, y), batch_size=4)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
tau, n, best, bad, scale, aside, last, it = 1.0, 0, math.inf, 0, 1.0, None, None, iter(other)
trace, counts, buffer, w = [], {"n": 0}, collections.deque(), torch.ones(1)
group, shadow = opt.param_groups[0], {name: p.detach().clone() for name, p in model.named_parameters()}
ema, avg, stop, tally = copy.deepcopy(model), AveragedModel(model), Stopper(), Tally()
"""
BEFORE = [
    "model.train()",
    "tau *= 0.9",
    "tau = 0.9 ** epoch",
    "tau = 0.5 if epoch else 1.5",
    "if epoch == 1:\n    tau = 0.4",
    "rates(opt, epoch)",
    "fall()",
    "for g in opt.param_groups:\n    g['lr'] = 0.03 * 0.5 ** epoch",
    "total = 0.0",
    "seen = []",
    "it = iter(other)",
    "start = copy.deepcopy(model.state_dict())",
    "scale = random.random()",
    "print(epoch, tau)",
    "trace.append(epoch)",
    "scale = 1.0 + n",
]
EARLY = [
    "scale = 1 + i / 7",
    "scale = 0.1 + tau",
    "scale = 1.0 + n / 9",
    "scale = random.random()",
    "scale = 1 + len(buffer) / 5",
    "scale = 1 + len(trace) / 5",
    "scale = 1 + counts['n'] / 9",
    "scale = 1 + tally.seen",
    "scale = 1 + float(w)",
    "step = epoch * len(loader) + i\nopt.param_groups[0]['lr'] = 0.002 * (step + 1)",
    "buffer.append(1)",
    "n += 1",
    "a = a + next(it)[0] / 9",
    "with torch.no_grad():\n    scale = 1 + float(ema[0].bias.mean())",
]
LOSSES = [
    "loss = scale * F.mse_loss(model(a), b)",
    "loss = scale * F.mse_loss(model(a), b, reduction='sum') / len(a)",
    "loss = F.mse_loss(model(a), b, reduction='sum')\nloss /= len(a)",
    "loss = 0.3 * scale * F.mse_loss(model(a), b, reduction='sum')",
    "loss = scale * F.mse_loss(model(a), b) + 0.01 * sum(p.pow(2).sum() for p in model.parameters())",
]
NORM, VALUES = (
    "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "nn.utils.clip_grad_value_(model.parameters(), 0.1)",
)
UPDATES = [
    "opt.zero_grad()\nLOSS\nloss.backward()\nopt.step()",
    "LOSS\nopt.zero_grad()\nloss.backward()\nopt.step()",
    "LOSS\nloss.backward()\nopt.step()\nopt.zero_grad()",
    f"opt.zero_grad()\nLOSS\nloss.backward()\n{NORM}\nopt.step()",
    f"opt.zero_grad()\nLOSS\nloss.backward()\n{NORM}\n{VALUES}\nopt.step()",
    f"opt.zero_grad()\nLOSS\nloss.backward()\n{VALUES}\n{NORM}\nopt.step()",
    f"opt.zero_grad()\nLOSS\nloss.backward()\nopt.step()\n{NORM}",
    "LOSS\nloss.backward()\nopt.step()",
    "opt.zero_grad()\nLOSS\nloss.backward()\nopt.param_groups[0]['lr'] = 0.01 * (epoch + 1)\nopt.step()",
    "LOSS\nloss.backward()\nopt.zero_grad()\nopt.step()",
]
LATE = [
    "n += 1",
    "total += loss.item()",
    "trace.append(1)",
    "counts['n'] += 1",
    "tally.add(0.1)",
    "w.mul_(0.9)",
    "w = w * 0.9",
    "with torch.no_grad():\n    for e, p in zip(ema.parameters(), model.parameters()):\n        e.lerp_(p, 0.1)",
    "avg.update_parameters(model)",
    "with torch.no_grad():\n    model[0].weight.clamp_(-0.4, 0.4)",
    "fall()",
    "if i == 1:\n    n += 2",
    "print(i, loss.item())",
    "last = loss.item()",
    "seen.append(1)",
    "for name, p in model.named_parameters():\n    shadow[name].lerp_(p.detach(), 0.1)",
]
AFTER = [
    "tau *= 0.8",
    "tau = tau * 0.5 if epoch else tau",
    "tau += n / 50",
    "trace.append(epoch)",
    "best = min(best, held())",
    "v = held()\nif v < best:\n    best, bad = v, 0\n    aside = copy.deepcopy(model.state_dict())\nelse:\n  bad += 1",
    "if epoch == 0:\n    aside = copy.deepcopy(model.state_dict())",
    "if epoch == 0:\n    aside = model.state_dict()",
    "if epoch == 1 and aside is not None:\n    model.load_state_dict(aside)",
    "if bad > 1:\n    break",
    "if stop(epoch):\n    break",
    "tally.add(epoch)",
    "fall()",
    "counts['n'] += epoch",
    "if loss < 3:\n    tau = 0.3",
    "if total > 50:\n    tau = 0.3",
    "tau = 1 + len(seen) / 9",
    "avg.update_parameters(model)",
    "ema.load_state_dict(model.state_dict())",
    "model.load_state_dict(start) if epoch == 1 else None",
    "print(held())",
    "n = 0",
    "group['lr'] *= 0.7",
    "model.load_state_dict(shadow)",
    "if epoch == 0:\n    opt = torch.optim.SGD(model.parameters(), lr=0.01)",
    "scale = 1.0 + epoch",
]
OUT = [
    "tau",
    "n",
    "best",
    "bad",
    "trace",
    "counts['n']",
    "float(w)",
    "tally.seen",
    "ema[0].weight",
    "avg.module[0].weight",
]


def lines(rng, pool, most, indent):
    picked = rng.sample(pool, rng.randint(0, most))
    return "".join(f"{' ' * indent}{line}\n" for each in picked for line in each.splitlines())


def parts_of(seed):
    """Lines in each place of a loop; some are not what anybody would write, and some do not run."""
    rng = random.Random(seed)
    update = rng.choice(UPDATES[: rng.choice((4, 4, 4, len(UPDATES)))])
    update = update.replace("LOSS", rng.choice(LOSSES[: rng.choice((1, len(LOSSES)))]))
    counted = rng.random() < 0.6
    early, late = lines(rng, EARLY, 2, 8), lines(rng, LATE, 2, 8)
    before, after = lines(rng, BEFORE, 1, 4), lines(rng, AFTER, 2, 4)
    out = ", ".join(f"{name!r}: {name}" for name in rng.sample(OUT, rng.randint(0, 2)))
    inner = (
        f"    for {'i, (a, b) in enumerate(loader)' if counted else 'a, b in loader'}:\n"
        + early
        + "".join(f"        {line}\n" for line in update.splitlines())
        + late
    )
    return before, inner, after, f'torch.save({{**model.state_dict(), {out}}}, "model.pt")\n'


def a_loop(seed):
    """As it is in most scripts that are short."""
    before, inner, after, out = parts_of(seed)
    return f"{HEAD}for epoch in range(3):\n{before}{inner}{after}{out}"


def in_a_function(seed):
    """The same lines, in a function that is called for each epoch: by its own names, or by others."""
    rng = random.Random(seed)
    before, inner, after, out = parts_of(seed)
    moved, returns, counts = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.3
    if rng.random() < 0.3:
        inner = inner.replace("enumerate(loader)", "enumerate(bar)", 1).replace(" in loader:", " in bar:", 1)
        inner = f"    bar = tqdm(loader, disable=True)\n{inner}        bar.set_postfix(i=1)\n"
    body = (before if moved else "") + inner + ("    return 0.1 + len(trace)\n" if returns else "")
    given = {name: name for name in ("model", "loader", "opt", "epoch")}
    if rng.random() < 0.5:
        given = {"net": "model", "batches": "loader", "optimizer": "opt", "number": "epoch"}
        for name, here in given.items():
            body = re.sub(rf"\b{here}\b", name, body)
    body, made = told_more(rng, body)
    given |= made
    return (
        f"{HEAD}\n\ndef one_epoch({', '.join(given)}):\n{body}\n\n"
        f"for epoch in range({'1, 3 + 1' if counts else '3'}):\n"
        f"{'' if moved else before}    {'tau = ' if returns else ''}one_epoch({', '.join(given.values())})\n"
        f"{after}{out}"
    )


def told_more(rng, body):
    """A factor of the loss that a call makes from what changes between calls, in some; the arguments by name."""
    told = rng.choice(("", "", "tau", "1.0 + n", "max(tau, 0.1)", "(tau, n)[0]"))
    if not told or "tau" in body or not (found := re.search(r"\bloss = ", body)):
        return body, {}
    return f"{body[: found.end()]}factor * {body[found.end() :]}", {"factor": told}


def in_a_step_function(seed):
    """The same lines: those of a batch are in a function, whose result gets a name, or is used where it is called."""
    rng = random.Random(seed)
    before, inner, after, out = parts_of(seed)
    head, _, body = inner.partition("\n")
    given = {name: name for name in ("model", "opt", "epoch", "a", "b", *(["i"] if "enumerate" in head else []))}
    if rng.random() < 0.5:
        given = {f"the_{name}": name for name in given}
        for name, here in given.items():
            body = re.sub(rf"\b{here}\b", name, body)
    body, made = told_more(rng, body)
    given |= made
    call = rng.choice(("CALL", "loss = CALL", "n += CALL", "trace.append(CALL)", "tau = 0.5 * tau + 0.1 * CALL"))
    body = textwrap.indent(textwrap.dedent(body), "    ") + ("" if call == "CALL" else "    return loss.item()\n")
    call = call.replace("CALL", f"one_step({', '.join(given.values())})")
    text = f"{HEAD}\n\ndef one_step({', '.join(given)}):\n{body}\n\n"
    if rng.random() < 0.3:
        text += f"def one_epoch(model, loader, opt, epoch):\n{head}\n        {call}\n\n\n"
        return f"{text}for epoch in range(3):\n{before}    one_epoch(model, loader, opt, epoch)\n{after}{out}"
    return f"{text}for epoch in range(3):\n{before}{head}\n        {call}\n{after}{out}"


OWN = ["model", "loader", "opt", "tau", "n", "best", "bad", "scale", "aside", "last", "it", "trace", "counts", "buffer"]
OWN += ["w", "group", "shadow", "ema", "avg", "stop", "tally"]


def in_a_class(seed):
    """The same lines as a method of an object: all of them, or with the batches in another one."""
    rng = random.Random(seed)
    before, inner, after, out = parts_of(seed)
    of_self = re.compile(rf"(?<![.\w'\"])({'|'.join(OWN)})\b(?!['\"])")
    used = [
        name for name in OWN if of_self.search(before + inner + after + out) and name in before + inner + after + out
    ]
    given = [name for name in used if rng.random() < 0.4]
    before, inner, after, out = (of_self.sub(r"self.\1", each) for each in (before, inner, after, out))
    within, called = rng.random() < 0.4, ", ".join(["self", *given])
    made = "".join(f"        self.{name} = {name}\n" for name in used)
    text = f"{HEAD}\n\nclass Training:\n    def __init__({called}):\n{made}\n"
    if within:
        text += f"    def one_epoch(self, epoch):\n{textwrap.indent(inner, '    ')}\n"
        inner = "    self.one_epoch(epoch)\n"
    body = f"for epoch in range(3):\n{before}{inner}{after}{out}"
    text += f"    def fit(self):\n{textwrap.indent(body, ' ' * 8)}\n\n"
    return text + (
        f"Training({', '.join(given)}).fit()\n"
        if rng.random() < 0.5
        else f"t = Training({', '.join(given)})\nt.fit()\n"
    )


def the_same(seed, folder, a_script=a_loop):
    """Whether it was converted; None for a loop that does not run."""
    source = a_script(seed)
    try:
        mended = converted(source)
    except CannotConvert as error:
        assert error.line > 0  # noqa: PT017 - what it says is looked at
        assert error.do  # noqa: PT017
        return False
    try:
        expected = run(source, folder / "plain")
    except (NameError, TypeError, StopIteration, KeyError):
        return None
    strikes = sorted(random.Random(seed).sample(range(1, STEPS), 2))
    calm = run(mended, folder / "calm")
    assert differs(expected, calm) == 0.0, f"{seed}: other weights\n{mended}"
    struck = run_struck(mended, folder / "struck", *strikes)
    assert differs(expected, struck) == 0.0, f"{seed}, struck at {strikes}: other weights\n{mended}"
    return True


@pytest.mark.parametrize("chunk", range(CHUNKS // 3))
def test_a_drawn_loop_in_a_function_is_refused_or_comes_to_the_same_to_the_bit(chunk, tmp_path):
    seed, found = 10_000 * chunk, []
    while len(found) < EACH:
        seed += 1
        if the_same(seed, tmp_path / str(seed), in_a_function):
            found.append(seed)


@pytest.mark.parametrize("chunk", range(CHUNKS // 3))
def test_a_drawn_loop_with_its_step_in_a_function_is_refused_or_comes_to_the_same_to_the_bit(chunk, tmp_path):
    seed, found = 10_000 * chunk, []
    while len(found) < EACH:
        seed += 1
        if the_same(seed, tmp_path / str(seed), in_a_step_function):
            found.append(seed)


@pytest.mark.parametrize("chunk", range(CHUNKS // 3))
def test_a_drawn_loop_in_a_class_is_refused_or_comes_to_the_same_to_the_bit(chunk, tmp_path):
    seed, found = 10_000 * chunk, []
    while len(found) < EACH:
        seed += 1
        if the_same(seed, tmp_path / str(seed), in_a_class):
            found.append(seed)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_drawn_loop_is_refused_or_comes_to_the_same_to_the_bit(chunk, tmp_path):
    seed, found = 10_000 * chunk, []
    while len(found) < EACH:  # refused ones cost nothing
        seed += 1
        if the_same(seed, tmp_path / str(seed)):
            found.append(seed)


def test_enough_loops_are_converted_and_enough_are_refused():
    count = 0
    for seed in range(60):
        try:
            converted(a_loop(seed))
            count += 1
        except CannotConvert:
            pass
    assert 15 <= count <= 50
