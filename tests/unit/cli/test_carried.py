"""What a loop carries from turn to turn, and how it updates: converted to the same weights to the bit, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.advice import inspect  # noqa: E402
from sublet.cli.work.script.facts import look_at  # noqa: E402
from sublet.cli.work.script.reading import Script  # noqa: E402
from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

UPDATE = """opt.zero_grad()
loss = F.mse_loss(model(a), b)
loss.backward()
opt.step()"""
NORM = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
VALUES = "nn.utils.clip_grad_value_(model.parameters(), 0.2)"
STRIKES = (2, 5, 9)  # amid an epoch of four steps, and once more


def script(before="", epoch="", turn=UPDATE, after="", later="", *, head="for a, b in loader:", more="", out=""):
    """A training loop of three epochs of four batches, with lines in each of its places."""

    def lines(text, indent):
        return "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())

    return (
        "import collections\nimport copy\nimport random\nimport torch\nimport torch.nn.functional as F\n"
        "from torch import nn\nfrom torch.optim.swa_utils import AveragedModel\n"
        "from torch.utils.data import DataLoader, TensorDataset\n\n"
        f"{more}\n"
        "torch.manual_seed(0)\nx = torch.rand(16, 4)\ny = 10 * x.sum(1, keepdim=True)\n"
        "loader = DataLoader(TensorDataset(x, y), batch_size=4)\n"
        "model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)\n"
        + lines(before, 0)
        + "for epoch in range(3):\n"
        + lines(epoch, 4)
        + f"    {head}\n"
        + lines(turn, 8)
        + lines(after, 4)
        + lines(later, 0)
        + f'torch.save({{**model.state_dict(){out}}}, "model.pt")\n'
    )


def refused(source):
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert error.value.do
    return error.value


COUNTED = "for i, (a, b) in enumerate(loader):"
PATIENCE = """val = F.mse_loss(model(x), y).item() + 50.0 * epoch
if val < best:
    best, bad = val, 0
    best_wts = copy.deepcopy(model.state_dict())
else:
    bad += 1
    if bad >= 9:
        break"""
AVERAGED = """with torch.no_grad():
    for e, p in zip(ema.parameters(), model.parameters()):
        e.mul_(0.9).add_(p, alpha=0.1)"""
RATES = """for group in opt.param_groups:
    group["lr"] = 0.01 * 0.5 ** epoch"""
STOPPER = """class Stopper:
    def __init__(self):
        self.best, self.bad = 9e9, 0
    def __call__(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= 2
"""
STATE = """    def state_dict(self):
        return {"best": self.best, "bad": self.bad}
    def load_state_dict(self, state):
        self.best, self.bad = state["best"], state["bad"]
"""
STOPS = "if stop(1.0 * epoch):\n    break"

CONVERTED = {
    "the number of a batch, in epochs of nothing else": script(
        turn=UPDATE.replace("(a), b)", "(a), b) * (1 + i / 4)"), head=COUNTED
    ),
    "the number of a step, by hand": script(
        turn="step = epoch * len(loader) + i\nfor g in opt.param_groups:\n    g['lr'] = 0.001 * (step + 1)\n" + UPDATE,
        head=COUNTED,
    ),
    "rates that were noted before": script(
        before="base = [g['lr'] for g in opt.param_groups]",
        epoch="for g, lr in zip(opt.param_groups, base):\n    g['lr'] = lr / (epoch + 1)",
    ),
    "the number of a batch, after the batches": script(
        before="seen = 0", after="seen += i", head=COUNTED, out=", 'seen': torch.tensor(seen)"
    ),
    "weights that are set aside": script(
        before="best, bad = float('inf'), 0\nbest_wts = copy.deepcopy(model.state_dict())",
        after=PATIENCE,
        later="model.load_state_dict(best_wts)",
    ),
    "weights that are set aside, of none at first": script(
        before="best: float = 9e9\nbad = 0\nbest_wts = None", after=PATIENCE, later="model.load_state_dict(best_wts)"
    ),
    "an average by hand": script(
        before="ema = copy.deepcopy(model)", turn=f"{UPDATE}\n{AVERAGED}", out=", 'ema': ema[0].weight"
    ),
    "an average once an epoch": script(
        before="ema = AveragedModel(model)",
        after="if epoch > 0:\n    ema.update_parameters(model)",
        out=", 'ema': ema.module[0].weight",
    ),
    "a stopper that has a state": script(before="stop = Stopper()", after=STOPS, more=STOPPER + STATE),
    "an annotated best": script(
        before="best: float = 9e9", after="if epoch < best:\n    best = epoch", out=", 'best': torch.tensor(best)"
    ),
    "a weight that follows from the epoch": script(epoch="tau = 0.7 ** epoch", turn=UPDATE.replace("= F", "= tau * F")),
    "a weight that falls after the batches": script(
        before="tau = 1.0", turn=UPDATE.replace("= F", "= tau * F"), after="tau *= 0.7"
    ),
    "a weight that falls, where the loss goes backward": script(
        before="tau = 1.0",
        turn="opt.zero_grad()\n(tau * F.mse_loss(\n    model(a) * tau, b) + tau - tau\n).backward()\nopt.step()",
        after="tau *= 0.7",
    ),
    "a loss that is kept": script(
        before="loss = torch.zeros(1)", after="loss = loss.detach() * 0", later="model[0].bias.data.add_(loss + 1)"
    ),
    "a generator": script(
        before="dice = torch.Generator().manual_seed(5)",
        after="with torch.no_grad():\n    model[0].bias.add_(torch.rand(5, generator=dice))",
    ),
    "a tensor that is put out": script(
        before="trace = torch.zeros(1)",
        after="torch.add(trace, epoch + 1.0, out=trace)",
        later="model[0].bias.data.add_(trace)",
    ),
    "a function in the loop that returns": script(
        turn="def half(v):\n    return 0.5 * v\n"
        + UPDATE.replace("= F.mse_loss(model(a), b)", "= half(F.mse_loss(model(a), b))")
    ),
    "a bar": script(
        before="tau = 1.0",
        turn="opt.zero_grad()\n(tau * F.mse_loss(model(a), b)).backward()\nopt.step()",
        after="tau *= 0.7",
        head='for a, b in tqdm(loader, desc=f"epoch {epoch}", disable=True):',
        more="from tqdm import tqdm\n",
    ),
    "a bar, and nothing else": script(head="for a, b in tqdm(loader):", more="from tqdm.auto import tqdm\n"),
    "rates that follow from the epoch": script(epoch=RATES),
    "rates by a function": script(
        epoch="adjust(opt, epoch)",
        more="def adjust(opt, n):\n    lr = 0.5 ** n\n    for g in opt.param_groups:\n        g['lr'] = lr / 99\n",
    ),
    "rates that fall after the batches": script(after="for g in opt.param_groups:\n    g['lr'] *= 0.5"),
    "a tensor": script(
        before="trace = torch.zeros(3)", after="trace[epoch] = epoch + 1", later="model[0].bias.data.add_(trace.sum())"
    ),
    "weights that are held near, after each step": script(
        turn=f"{UPDATE}\nwith torch.no_grad():\n    for p in model.parameters():\n        p.clamp_(-0.3, 0.3)"
    ),
    "a norm and then values": script(
        turn=UPDATE.replace(
            "opt.step()",
            f"{NORM}\n{VALUES}\nopt.step()",
        )
    ),
    "cleared at the end of a turn": script(turn=UPDATE.partition("\n")[2] + "\nopt.zero_grad()"),
    "an evaluation that sums": script(
        more='def evaluate():\n    return F.mse_loss(model(x), y, reduction="sum").item() / 16\n',
        after="print(evaluate())",
    ),
    "a sum that is divided in the next line": script(
        turn=UPDATE.replace("model(a), b)", "model(a), b, reduction='sum')\nloss /= len(a)")
    ),
    "a copy of each parameter": script(
        before="shadow = {name: p.detach().clone() for name, p in model.named_parameters()}",
        turn=UPDATE + "\nfor name, p in model.named_parameters():\n    shadow[name].lerp_(p.detach(), 0.1)",
        later="model[0].bias.data.copy_(shadow['0.bias'])",
    ),
    "a file every few steps": script(
        before="n = 0",
        turn=UPDATE + "\nn += 1\nif n % 5 == 0:\n    torch.save(model.state_dict(), 'some.pt')\n    n += 1",
        out=", 'n': n",
    ),
    "a teacher that is calm": script(
        before="teacher = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))\nteacher.eval()",
        turn=UPDATE.replace(", b)", ", teacher(a).detach())"),
    ),
    "a loss of another file": script(
        more="from tests.rigs.elsewhere import loss_of\n",
        turn=UPDATE.replace("F.mse_loss(model(a), b)", "loss_of(model, a, b)"),
    ),
    "a total that is only printed": script(
        epoch="total = 0.0", turn=f"{UPDATE}\ntotal += loss.item()", after="print(total)"
    ),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_loop_comes_to_the_same_to_the_bit_left_in_peace_and_struck(name, tmp_path):
    source = CONVERTED[name]
    if "tqdm" in source:
        pytest.importorskip("tqdm")
    mended = converted(source)
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0
    assert differs(expected, run_struck(mended, tmp_path / "struck", *STRIKES)) == 0.0
    assert ", reduction=" not in mended.partition("train.session(")[2].partition("\n")[0]


GONE = "train.checkpointed"
REFUSED = {
    # names of a turn that nobody keeps
    "a stopper without a state": (script(before="stop = Stopper()", after=STOPS, more=STOPPER), "Stopper", 33),
    "a second loader": (
        script(
            epoch="it = iter(other)",
            turn="c, d = next(it)\n" + UPDATE.replace("model(a)", "model(a + c)"),
            before="other = DataLoader(TensorDataset(x, y))",
        ),
        "iterator",
        21,
    ),
    "a buffer": (
        script(
            before="buffer = collections.deque()", turn=f"buffer.append(1)\n{UPDATE.replace('b)', 'b) * len(buffer)')}"
        ),
        "`buffer`",
        20,
    ),
    "a target network that is another each time": (
        script(
            before="target = copy.deepcopy(model)",
            after="if epoch < 2:\n    target = copy.deepcopy(model)",
            out=", 't': target[0].bias",
        ),
        "`target` is another module",
        25,
    ),
    "weights that are not copied": (
        script(
            before="aside = None",
            after="if epoch < 2:\n    aside = model.state_dict()",
            later="model.load_state_dict(aside)",
        ),
        "itself, or a part of it",
        25,
    ),
    "an object of another file": (
        script(more="from elsewhere import Watch\n", before="watch = Watch()", after="if watch(epoch):\n    break"),
        "which is not in this script",
        25,
    ),
    "a teacher whose running means move": (
        script(
            before="teacher = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))",
            turn=UPDATE.replace(", b)", ", teacher(a).detach())"),
        ),
        "`teacher`",
        21,
    ),
    "the number of the last batch, in the next epoch": (
        script(before="i = 0", epoch="w = 1 + i", turn=UPDATE.replace("= F", "= w * F"), head=COUNTED),
        "`i` is looked at",
        19,
    ),
    "a generator of its own": (
        script(before="g = torch.Generator()", turn=UPDATE.replace("(a), b)", "(a + torch.rand(4, generator=g)), b)")),
        "`g`",
        21,
    ),
    "a hidden state": (
        script(before="h = torch.zeros(1)", turn=UPDATE.replace("model(a)", "model(a) + h") + "\nh = loss.detach()"),
        "own part of the batch",
        24,
    ),
    "what a function changes": (
        script(
            more="def note(v):\n    seen.append(v)\n",
            before="seen = collections.ChainMap()",
            after="note(1)",
            later="model[0].bias.data += len(seen)",
        ),
        "`seen`",
        11,
    ),
    # losses that no session can put together from the parts of a batch
    "samples that are put beside each other": (
        script(
            turn=UPDATE.replace(
                "loss = F.mse_loss(model(a), b)",
                "z = F.normalize(model(a), dim=1)\nlogits = z @ F.normalize(b).T / 0.1\n"
                "loss = F.cross_entropy(logits, torch.arange(len(a)))",
            )
        ),
        "goes by the others of its batch",
        21,
    ),
    "a mean over some samples": (
        script(turn="far = a[:, 0] > 0.5\n" + UPDATE.replace("(a), b)", "(a)[far], b[far])")),
        "a mean over some samples",
        21,
    ),
    "a root of a mean": (
        script(turn=UPDATE.replace("F.mse_loss(model(a), b)", "torch.sqrt(F.mse_loss(model(a), b) + 1e-8)")),
        "a function of a mean",
        20,
    ),
    "weights of labels": (
        script(
            before="criterion = nn.CrossEntropyLoss(weight=torch.ones(1))",
            turn=UPDATE.replace("F.mse_loss(model(a), b)", "criterion(model(a), b[:, 0].long())"),
        ),
        "a weighted mean",
        21,
    ),
    "labels that are ignored": (
        script(turn=UPDATE.replace("mse_loss(model(a), b)", "cross_entropy(model(a), b[:, 0].long(), ignore_index=0)")),
        "over some samples, or labels",
        20,
    ),
    "the hardest samples": (
        script(
            turn=UPDATE.replace("model(a), b)", "model(a), b, reduction='none').mean(1)\nloss = loss.topk(2)[0].mean()")
        ),
        "chosen among the samples",
        21,
    ),
    # what has a reason of its own
    "a generator that each worker would draw from": (
        script(
            before="dice = torch.Generator().manual_seed(5)",
            turn=UPDATE.replace("model(a)", "model(a + torch.rand(a.shape, generator=dice))"),
        ),
        "`dice` draws before the step is made",
        21,
    ),
    "a function that remembers": (
        script(
            more="def ramp():\n    ramp.t += 1\n    return ramp.t / 9\nramp.t = 0\n",
            turn="w = ramp()\n" + UPDATE.replace("= F", "= w * F"),
        ),
        "`ramp` is a function, and remembers",
        11,
    ),
    "a closure": (
        script(turn="def closure():\n    opt.zero_grad()\n    model(a).sum().backward()\nopt.step(closure)"),
        "is given a closure",
        22,
    ),
    "LBFGS": (
        script(before="opt = torch.optim.LBFGS(model.parameters())"),
        "LBFGS, which cannot be elastic",
        23,
    ),
    "a loop in a method": (
        script(
            more="class Fit:\n    def run(self):\n        for a, b in self.loader:\n"
            "            self.model(a).backward()\n            self.opt.step()\n",
            turn="pass",
        ),
        "in a method, Fit.run()",
        12,
    ),
    "a loop that steps an argument": (
        script(
            more="def fit(model, stepper, loader):\n    for a, b in loader:\n"
            "        model(a).backward()\n        stepper.step()\n",
            turn="pass",
        ),
        "steps `stepper`",
        11,
    ),
    "two names for what is kept": (
        script(before="seen = torch.zeros(1)\nsame = seen", after="seen += 1", later="model[0].bias.data.add_(same)"),
        "`seen` is also `same`",
        25,
    ),
    "a sampler that counts": (
        script(
            more="class Odd(torch.utils.data.Sampler):\n    def __init__(self):\n        self.epoch = 0\n"
            "    def __iter__(self):\n        self.epoch += 1\n        return iter(range(self.epoch % 2, 16))\n",
            before="loader = DataLoader(TensorDataset(x, y), batch_size=4, sampler=Odd())",
        ),
        "Odd changes as it gives an order",
        14,
    ),
    "two schedules by turns": (
        script(
            more="from torch.optim import lr_scheduler as lr\n",
            before="warm = lr.LinearLR(opt)\ncos = lr.ExponentialLR(opt, 0.9)",
            turn=UPDATE + "\nif epoch == 0:\n    warm.step()\nelse:\n    cos.step()",
        ),
        "step() is not in every turn",
        27,
    ),
    # lines before the batches of an epoch
    "a weight that falls": (
        script(before="tau = 1.0", epoch="tau *= 0.7", turn=UPDATE.replace("= F", "= tau * F")),
        "`tau` changes before the batches",
        19,
    ),
    "rates that fall": (
        script(epoch="if epoch in (1, 2):\n    for g in opt.param_groups:\n        g['lr'] *= 0.3"),
        "`opt` changes before the batches",
        20,
    ),
    "a seed": (script(epoch="torch.manual_seed(epoch)"), "seed", 18),
    "random numbers": (script(epoch="w = torch.rand(1)", turn=UPDATE.replace("= F", "= w * F")), "random numbers", 18),
    "a look at the model": (
        script(epoch="start = copy.deepcopy(model.state_dict())", after="model.load_state_dict(start)"),
        "`model` is looked at",
        18,
    ),
    "a validation that draws": (
        script(epoch="for c, d in other:\n    model(c)", before="other = DataLoader(TensorDataset(x, y))"),
        "random numbers",
        19,
    ),
    "a value for some epochs": (
        script(before="w = 1.0", epoch="if epoch == 1:\n    w = 0.5", turn=UPDATE.replace("= F", "= w * F")),
        "`w` changes before the batches",
        20,
    ),
    "a list that begins anew and decides": (
        script(epoch="seen = []", turn=f"{UPDATE}\nseen.append(1)", after="if len(seen) > 99:\n    break"),
        "begins anew with each epoch",
        24,
    ),
    # what the session was given
    "an optimizer that is made anew": (
        script(after="if epoch == 1:\n    opt = torch.optim.SGD(model.parameters(), lr=0.1)"),
        "`opt` is another after this",
        24,
    ),
    "a loader that is made anew": (
        script(epoch="loader = DataLoader(TensorDataset(x, y * epoch), batch_size=4)"),
        "`loader` is another after this",
        18,
    ),
    "samples that change": (
        script(before="data = TensorDataset(x, y)\nloader = DataLoader(data, batch_size=4)", epoch="data.grow(epoch)"),
        "`data` changes in the loop",
        20,
    ),
    "a group that was taken out before": (
        script(before="group = opt.param_groups[0]", after="group['lr'] *= 0.5"),
        "as it was before the loop",
        24,
    ),
    # what decides, and is a worker's own
    "a total that decides": (
        script(before="total = 0.0", turn=f"{UPDATE}\ntotal += loss.item()", after="if total > 1e9:\n    break"),
        "own part of the batch",
        24,
    ),
    "a loss that decides": (
        script(after='if loss < 1e-9:\n    torch.save(model, "x.pt")'),
        "own part of the batch",
        24,
    ),
    "rates by a loss": (
        script(after="for g in opt.param_groups:\n    g['lr'] = 0.01 * loss.item()"),
        "own part of the batch",
        24,
    ),
    # the update
    "values and then a norm": (
        script(
            turn=UPDATE.replace(
                "opt.step()",
                f"{VALUES}\n{NORM}\nopt.step()",
            )
        ),
        "clips their norm, and then their values",
        22,
    ),
    "a clip after the step": (
        script(turn=f"{UPDATE}\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
        "where no step follows",
        23,
    ),
    "a clip in a function": (
        script(
            more="def clip():\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            turn=UPDATE.replace("opt.step()", "clip()\nopt.step()"),
        ),
        "clipping",
        11,
    ),
    "a clip by what the epoch says": (
        script(
            epoch="most = 1.0 / (epoch + 1)",
            turn=UPDATE.replace("opt.step()", "nn.utils.clip_grad_norm_(model.parameters(), most)\nopt.step()"),
        ),
        "not the same in every turn",
        23,
    ),
    "no zero_grad": (script(turn=UPDATE.partition("\n")[2]), "not cleared in every turn", 20),
    "zero_grad once an epoch": (
        script(epoch="opt.zero_grad()", turn=UPDATE.partition("\n")[2]),
        "not in every turn",
        18,
    ),
    "zero_grad before the step": (
        script(turn=UPDATE.partition("\n")[2].replace("opt.step()", "opt.zero_grad()\nopt.step()")),
        "which then does nothing",
        20,
    ),
    "a rate between backward and step": (
        script(turn=UPDATE.replace("opt.step()", "opt.param_groups[0]['lr'] = 0.1 / (epoch + 1)\nopt.step()")),
        "between backward and step",
        22,
    ),
    "a schedule that is told something": (
        script(before="sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)", turn=f"{UPDATE}\nsched.step(epoch)"),
        "sched.step() is given something",
        24,
    ),
    "a schedule before the step": (
        script(
            before="sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)",
            turn=UPDATE.replace("opt.step()", "sched.step()\nopt.step()"),
        ),
        "not once after",
        23,
    ),
    "a count before the step": (
        script(before="n = 0", turn=f"n += 2\n{UPDATE.replace('= F', '= n * F')}"),
        "changes before the step is made",
        20,
    ),
    "a parameter of nobody": (
        script(before="w = nn.Parameter(torch.ones(1))\nopt = torch.optim.SGD([*model.parameters(), w], lr=0.01)"),
        "no model does",
        18,
    ),
    "all that ends it is caught": (
        script(head="for a, b in loader:")
        .replace("for epoch", "def main():\n  for epoch")
        .replace("\n    ", "\n      ")
        + "try:\n    main()\nexcept:\n    pass\n",
        "order to leave",
        27,
    ),
    # sums
    "a sum and a penalty": (
        script(
            turn=UPDATE.replace(
                "model(a), b)", "model(a), b, reduction='sum') + sum(p.pow(2).sum() for p in model.parameters())"
            )
        ),
        "once for each worker",
        20,
    ),
    "a sum and a mean": (
        script(turn=UPDATE.replace("model(a), b)", "model(a), b, reduction='sum') + F.l1_loss(model(a), b)")),
        "a sum in one place",
        20,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loop_that_would_come_to_something_else_is_refused_with_its_line_and_why(name):
    source, why, line = REFUSED[name]
    error = refused(source)
    assert why in error.why
    assert error.line == line


SCALED = """opt.zero_grad()
loss = F.mse_loss(model(a), b)
scaler.scale(loss).backward()
scaler.unscale_(opt)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(opt)
scaler.update()"""
MAKES = 'scaler = torch.amp.GradScaler("cpu")'


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("scaler.unscale_(opt)\n", "", "that are scaled"),
        ("\nscaler.update()", "", "scaler.update() does not follow"),
        ("scaler.scale(loss).backward()", "loss.backward()", "not scaled"),
        ("scaler.step(opt)", "opt.step()", "without the scaler"),
        ("opt.zero_grad()\n", "opt.zero_grad()\nscaler.unscale_(opt)\n", "where no step follows"),
    ],
)
def test_half_precision_in_another_order_is_refused(old, new, why):
    assert "scaler=scaler, clip_norm=1.0" in converted(script(before=MAKES, turn=SCALED))
    assert why in refused(script(before=MAKES, turn=SCALED.replace(old, new, 1))).why


def test_gradients_of_two_optimizers_are_cleared_right_before_their_own_loss():
    before = "other = nn.Linear(4, 1)\nopt2 = torch.optim.SGD(other.parameters(), lr=0.1)"  # beside the first
    second = "opt2.zero_grad()\nloss2 = F.mse_loss(other(a), b)\nloss2.backward()\nopt2.step()"
    assert '"G": other' not in converted(script(before=before, turn=f"{UPDATE}\n{second}"))
    early = f"opt2.zero_grad()\n{UPDATE}\n" + second.partition("\n")[2]
    assert "before another loss goes backward" in refused(script(before=before, turn=early)).why


def test_epochs_are_counted_where_their_number_is_asked_for_after_the_loop():
    assert "s.epochs()" not in converted(script())
    assert "for epoch in s.epochs():" in converted(script(later="model[0].bias.data += epoch"))


def test_the_number_of_a_batch_begins_with_its_epoch_and_is_that_of_the_training_where_a_file_goes_by_it():
    told = converted(script(turn=f"{UPDATE}\nprint(i)", head=COUNTED))
    assert "for i, (a, b) in enumerate(s):" in told
    assert "for epoch in s.epochs():" in told
    saved = f"{UPDATE}\nif i == 2:\n    torch.save(model, 'some.pt')"
    assert "i = s.steps % len(loader)" in converted(script(turn=saved, head=COUNTED))


def test_names_of_a_batch_are_others_after_it_where_they_are_drawn_anew():
    held_out = "total = 0.0\nfor a, b in other:\n    total += F.mse_loss(model(a), b).item()\n"
    before = "best = 9e9\nother = DataLoader(TensorDataset(x, y))"
    decides = "if total < best:\n    best = total\n    torch.save(model, 'best.pt')"
    assert "keep(best=best)" in converted(script(before=before, after=held_out + decides))
    assert "own part" in refused(script(before=before, after=decides.replace("total", "loss"))).why


def test_what_each_turn_gives_a_value_first_is_not_kept():
    found = converted(script(before="w = 1.0", turn="w = 0.5 * epoch\n" + UPDATE.replace("= F", "= w * F")))
    assert "keep(" not in found


OWN = """for step in range(9):
    batch = torch.rand(4, 4)
    opt.zero_grad()
    loss = F.mse_loss(model(batch), batch.sum(1, keepdim=True) + state)
    loss.backward()
    opt.step()
    state = 0.9 * state + 0.1
    if step % 3 == 0:
        target.load_state_dict(model.state_dict())
    with torch.no_grad():
        state = state + target(batch).mean()
torch.save({**model.state_dict(), "state": state}, "model.pt")
"""


def own_loop(text):
    head = script(before="target = copy.deepcopy(model)\nstate = torch.zeros(1)").partition("for epoch")[0]
    return head + text


def test_a_loop_of_its_own_keeps_all_that_it_carries(tmp_path):
    source = own_loop(OWN)
    mended = converted(source)
    assert "train.checkpointed(model=model, optimizer=opt, target=target, steps=9)" in mended
    assert "ck.keep(state=state)" in mended
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0
    assert differs(expected, run_struck(mended, tmp_path / "struck", 2, 5)) == 0.0


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("    opt.zero_grad()\n", "    if step % 2 == 0:\n        opt.zero_grad()\n", "gradients are left"),
        ("    batch = ", "    seen.add(step)\n    batch = len(seen) * ", "`seen`"),
        ("state = state +", "held = state\n        state = held +", ""),
    ],
)
def test_a_loop_of_its_own_that_carries_something_else_is_refused(old, new, why):
    source = own_loop("seen = set()\n" + OWN.replace(old, new))
    if why:
        assert why in refused(source).why
    else:
        assert "ck.keep(state=state)" in converted(source)


def test_what_is_lost_is_said_with_its_line_and_what_to_do():
    source = script(before="stop = Stopper()", after=STOPS, more=STOPPER)
    read = Script(Path("train.py"), source)
    (found,) = (each for each in inspect(read, look_at(read)).findings if "`stop`" in each.what)
    assert found.line == source[: source.index("if stop(")].count("\n") + 1
    assert "state_dict" in found.do
    mended = converted(script(before="stop = Stopper()", after=STOPS, more=STOPPER + STATE))
    read = Script(read.path, mended)
    assert not [each for each in inspect(read, look_at(read)).findings if "remembered" in each.what]
