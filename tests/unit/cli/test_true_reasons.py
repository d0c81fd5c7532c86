"""Scripts that were refused for a reason that was none: converted now, to the bit, or refused with the one that is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(18, 4)
y = (x.sum(1) > 2).long()
loader = DataLoader(TensorDataset(x, y), batch_size=4)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
"""
SAVE = 'torch.save(model.state_dict(), "model.pt")\n'
OPTIMIZER = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"


def looped(*lines: str, before: str = OPTIMIZER) -> str:
    turns = "".join(f"        {line}\n" for line in lines)
    return f"{HEAD}{before}for epoch in range(3):\n    for i, (a, b) in enumerate(loader):\n{turns}{SAVE}"


STEP = ("opt.zero_grad()", "loss.backward()", "opt.step()")
LOSS = "loss = F.cross_entropy(model(a), b)"
BUILT = """
def build():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


model, opt = build()
"""
ADVERSARIAL = ("g, = torch.autograd.grad(F.cross_entropy(model(c), b), c)", "c = (a + 0.1 * g.sign()).detach()")
CONVERTED = {
    "an optimizer in a return": looped(LOSS, *STEP, before=BUILT),
    "two in one line": looped(LOSS, *STEP, before="n, opt = 3, torch.optim.SGD(model.parameters(), lr=0.1)\n"),
    "a gradient of the batch": looped(
        "c = a.requires_grad_()", *ADVERSARIAL, LOSS.replace("(a)", "(c)"), *STEP
    ),
    "of a copy of it": looped(
        "c = a.clone()", "c.requires_grad = True", *ADVERSARIAL, LOSS.replace("(a)", "(c)"), *STEP
    ),
    "of a sum": looped(
        "c = torch.zeros_like(a).requires_grad_(True)",
        "g, = torch.autograd.grad(F.cross_entropy(model(a + c), b, reduction='sum'), c)",
        "loss = F.cross_entropy(model(a + 0.1 * g), b)",
        *STEP,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_it_comes_to_the_same_to_the_bit_left_in_peace_and_struck(name, tmp_path):
    mended = converted(CONVERTED[name])
    expected = run(CONVERTED[name], tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, tmp_path / "struck", 3, 9)) == 0.0, mended


TWO = """one = torch.optim.SGD(model[0].parameters(), lr=0.1)
two = torch.optim.Adam(model[2].parameters(), lr=0.1)
"""
GAN = """critic = nn.Linear(4, 1)
maker = nn.Linear(2, 4)
opt = torch.optim.SGD(critic.parameters(), lr=0.1)
opt_m = torch.optim.SGD(maker.parameters(), lr=0.1)
"""
DICE = """
class DiceLoss(nn.Module):
    def forward(self, logits, target):
        p = logits.sigmoid()
        return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


criterion = DiceLoss()
"""
REFUSED = {  # the text, why, where, and words of what to do
    "one loss for two optimizers": (
        looped(LOSS, "one.zero_grad()", "two.zero_grad()", "loss.backward()", "one.step()", "two.step()", before=TWO),
        "one and two make their steps by one loss",
        "two.step()",
        "if they are of one kind, one optimizer",
    ),
    "a loss whose gradients are cleared": (
        looped(
            "a.requires_grad_()", "F.cross_entropy(model(a), b).backward()", "c = a + a.grad.sign()",
            LOSS.replace("(a)", "(c)"), *STEP,
        ),
        "gradients of this loss are cleared before the step",
        "F.cross_entropy(model(a), b).backward()",
        "torch.autograd.grad(loss, inputs)",
    ),
    "two losses": (
        looped(LOSS, "opt.zero_grad()", "loss.backward()", "model(a).mean().backward()", "opt.step()"),
        "several losses go backward before one step",
        "opt.step()",
        "add the losses up",
    ),
    "two steps by one loss": (
        looped("opt.step()", LOSS, "opt.zero_grad()", "loss.backward()", "opt.step()"),
        "opt.step() is called twice in a turn",
        "opt.step()",
        "one loss and one step",
    ),
    "a step before its loss": (
        looped("opt.step()", LOSS, "opt.zero_grad()", "loss.backward()"),
        "before its gradients are there",
        "opt.step()",
        "backward, and then step",
    ),
    "a critic that is trained more often": (
        looped(
            "opt.zero_grad()", "loss = critic(a).mean()", "loss.backward()", "opt.step()", "if i % 2 == 0:",
            "    opt_m.zero_grad()", "    other = critic(maker(a[:, :2])).mean()", "    other.backward()",
            "    opt_m.step()", before=GAN,
        ),
        "`opt_m.step()` is in some turns only, with a loss of its own",
        "opt_m.step()",
        "a loss for each of them in every turn",
    ),
    "a loss that is there now and then": (
        looped(LOSS, *STEP[:1], "if i == 2:", "    model(a).mean().backward()", *STEP[1:]),
        "`model(a).mean().backward()` is in some turns only",
        "model(a).mean().backward()",
        "one loss in every turn",
    ),
    "accumulated gradients": (
        looped(LOSS, "loss.backward()", "if i % 2 == 1:", "    opt.step()", "    opt.zero_grad()"),
        "is not in every turn of the loop",
        "opt.zero_grad()",
        "micro_batch=B",
    ),
    "a step in a function": (
        looped(
            "update(F.cross_entropy(model(a), b))", "opt.step()",
            before=f"{OPTIMIZER}def update(loss):\n    opt.zero_grad()\n    loss.backward()\n",
        ),
        "`opt.zero_grad()` is in update(), which the loop calls",
        "opt.zero_grad()",
        "in the loop itself",
    ),
    "an update in a function, now and then": (
        looped(
            "if i > 0:", "    update(F.cross_entropy(model(a), b))",
            before=f"{OPTIMIZER}def update(loss):\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n",
        ),
        "the update is in update(), and the loop in line 18 calls it",
        "loss.backward()",
        "in the loop itself",
    ),
    "a quotient of sums": (
        looped("loss = criterion(model(a), F.one_hot(b, 2).float())", *STEP, before=OPTIMIZER + DICE),
        "a sum over the batch that is divided by another",
        "return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)",
        "where no weights bear on what it is divided by",
    ),
    "a mask": (
        looped("m = (a[:, 0] > 0.5).float()", "loss = (model(a)[:, 0] * m).sum() / m.sum().clamp(min=1)", *STEP),
        "a sum over the batch that is divided by another",
        "loss = (model(a)[:, 0] * m).sum() / m.sum().clamp(min=1)",
        'reduction="counted"',
    ),
    "counts of a batch": (
        looped("n = torch.bincount(b, minlength=2) + 1", "loss = F.cross_entropy(model(a) + n.log(), b)", *STEP),
        "goes by the others of its batch",
        "n = torch.bincount(b, minlength=2) + 1",
        "--workers 1",
    ),
    "a gradient of a mean": (
        looped(
            "a.requires_grad_()", "g, = torch.autograd.grad(F.cross_entropy(model(a), b), a)",
            "loss = F.cross_entropy(model(a.detach() + g), b)", *STEP,
        ),
        "a gradient of a mean over samples",
        "g, = torch.autograd.grad(F.cross_entropy(model(a), b), a)",
        "a gradient of a sum",
    ),
    "a layer that is unfrozen": (
        looped("for p in model[0].parameters():", "    p.requires_grad = True", LOSS, *STEP),
        "parameters are unfrozen",
        "p.requires_grad = True",
        "lr=0",
    ),
    "a part of it from before": (
        looped("last.requires_grad_(True)", LOSS, *STEP, before=f"{OPTIMIZER}last = model[2]\n"),
        "parameters are unfrozen",
        "last.requires_grad_(True)",
        "lr=0",
    ),
    "an optimizer without a name": (
        looped(LOSS, *STEP, before="box = dict(opt=torch.optim.SGD(model.parameters(), lr=0.1))\n"),
        "the optimizer has no name where it is made",
        "box = dict(opt=torch.optim.SGD(model.parameters(), lr=0.1))",
        "a line of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_for_what_it_does(name):
    source, why, line, do = REFUSED[name]
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert why in error.value.why
    assert source.splitlines()[error.value.line - 1].strip() == line
    assert do in error.value.do


CRITERION = "loss = criterion(model(a), F.one_hot(b, 2).float())"
ROOT = """
class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss()

    def forward(self, a, b):
        return torch.sqrt(self.mse(a, b) + 1e-6)


criterion = Root()
"""
PARTS = """
class Both(nn.Module):
    def overlap(self, p, target):
        return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)

    def forward(self, logits, target):
        return F.mse_loss(logits, target) + self.overlap(logits.sigmoid(), target)


criterion = Both()
"""
HEADED = """
class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, logits, target):
        return ((self.head(logits) - target) ** 2 * target).sum() / target.sum()


criterion = Headed()
"""


@pytest.mark.parametrize(
    ("criterion", "why"),
    [
        (DICE.replace("DiceLoss", "DiceBCE"), "a sum over the batch that is divided by another"),
        (DICE.replace("DiceLoss", "Criterion"), "a sum over the batch that is divided by another"),
        (DICE.replace("DiceLoss(nn.Module)", "IoU").replace("DiceLoss", "IoU").replace("forward", "__call__"),
         "a sum over the batch that is divided by another"),
        (ROOT, "a function of a mean"),
        (PARTS, "a sum over the batch that is divided by another"),
        (HEADED, "a sum over the batch that is divided by another"),
    ],
)  # fmt: skip
def test_a_class_that_is_called_for_the_loss_is_looked_into_by_whatever_name(criterion, why):
    with pytest.raises(CannotConvert) as error:
        converted(looped(CRITERION, *STEP, before=OPTIMIZER + criterion))
    assert why in error.value.why


TEACHER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) / self.layer(x).sum()


teacher = Net()
"""


@pytest.mark.parametrize(
    ("before", "loss"),
    [
        (ROOT.replace("torch.sqrt(self.mse(a, b) + 1e-6)", "self.mse(a, b) + (a - b).abs().mean()"), CRITERION),
        (DICE.replace("DiceLoss", "Dice").replace(".sum()", ".sum(1)").replace("return 1 - (", "return (1 - (")
         .replace(" + 1)\n", " + 1)).mean()\n"), CRITERION),
        (TEACHER, "loss = F.mse_loss(model(a), teacher(a).detach())"),
    ],
)  # fmt: skip
def test_one_that_is_a_mean_is_converted_and_networks_are_not_looked_into(before, loss):
    after = converted(looped(loss, *STEP, before=OPTIMIZER + before))
    assert "reduction=" not in after.partition("train.session(")[2].partition("\n")[0]


METHOD = """
class Solver(object):
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.sched = lr_scheduler.StepLR(self.opt, 2)
        self.count = 0

    def fit(self, batches, n):
        for epoch in range(n):
            self.net.train()
            for a, b in batches:
                loss = F.cross_entropy(self.net(a), b)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.count += 1
            self.sched.step()


solver = Solver(model)
solver.fit(loader, 3)
print(solver.count)
"""
SCALED = (
    METHOD.replace("self.count = 0", "self.scaler = torch.amp.GradScaler()")
    .replace("loss.backward()", "self.scaler.scale(loss).backward()")
    .replace("                self.opt.step()\n", "                self.scaler.step(self.opt)\n")
    .replace("self.count += 1", "self.scaler.update()")
    .replace("            self.sched.step()", "                self.sched.step()")
    .replace("print(solver.count)", "print(solver)")
)


@pytest.mark.parametrize(
    ("source", "given", "lines"),
    [
        (METHOD, "self.net, self.opt, batches, epochs=n", "25, 26, 27"),
        (
            SCALED,
            "self.net, self.opt, batches, epochs=n, scaler=self.scaler, scheduler=self.sched",
            "25, 26, 27, 28, 29",
        ),
    ],
)
def test_what_to_write_in_a_method_names_the_optimizer_the_loader_and_the_schedule_of_each_step(source, given, lines):
    with pytest.raises(CannotConvert) as error:
        converted(HEAD + source + SAVE)
    assert f"`with train.session({given}) as s:`" in error.value.do
    assert "`for epoch in s.epochs():` in line 21; `for a, b in s:` in line 23; `s.step(loss)`" in error.value.do
    assert f"in place of lines {lines};" in error.value.do
