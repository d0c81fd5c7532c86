"""What `sublet convert` reads of a loop: how long it is, in which order it updates, what it carries, where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.cli.work.script.convert import convert
from sublet.cli.work.script.reading import CannotConvert, Script

HEAD = """import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

model = nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4)
"""
PLAIN = """for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
"""


def converted(source):
    return convert(Script(Path("train.py"), source)).text


def refused(source):
    with pytest.raises(CannotConvert) as error:
        convert(Script(Path("train.py"), source))
    return error.value


MADE = """import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4)
n = 0
"""
TURN = "opt.zero_grad()\nmodel(x).mean().backward()\nopt.step()\n"


CLIPS = """        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
CLEARS = "    for x, y in loader:\n        opt.zero_grad()\n"
ASKS = "it = iter(loader)\nwhile True:\n    x = next(it)\n"
FIRST = "it = iter(loader)\nwhile True:\n    if n == 9:\n        break\n    x = next(it)\n"


def deep(spaces, text):
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("loop", "extent"),
    [
        ("while n < 12:\n    for x in loader:\n" + deep(8, TURN + "n += 1\nif n >= 12:\n    break"), "steps=12"),
        ("while n < 12:\n    for x in loader:\n" + deep(8, TURN + "n += 1"), "epochs=-(-12 // len(loader))"),
        ("while n <= 12:\n    for x in loader:\n" + deep(8, TURN) + "    n += 1\n", "epochs=13"),
        (
            ASKS + deep(4, TURN + "n += 1\nif n > 9:\n    break"),
            "steps=10",
        ),
        (
            ASKS + deep(4, TURN + "n += 1\nif n >= 9:\n    break"),
            "steps=9",
        ),
        (
            ASKS + deep(4, TURN + "if n == 9:\n    break\nn += 1"),
            "steps=10",
        ),
        (
            "it = iter(loader)\nwhile True:\n    if n == 9:\n        break\n    x = next(it)\n"
            + deep(4, TURN + "n += 1"),
            "steps=9",
        ),
        ("it = iter(loader)\nfor i in range(2, 9):\n    x = next(it)\n" + deep(4, TURN), "steps=7"),
        ("for i in range(7):\n    x = get_batch()\n" + deep(4, TURN), "steps=7"),
        ("for e in range(1, args.n + 1):\n    for x in loader:\n" + deep(8, TURN), "epochs=args.n"),
        ("for e in range(start + 1, start + args.n + 1):\n    for x in loader:\n" + deep(8, TURN), "epochs=args.n"),
        ("for e in range(start, args.n):\n    for x in loader:\n" + deep(8, TURN), "epochs=args.n"),
        ("for e in range(start, start + 20):\n    for x in loader:\n" + deep(8, TURN), "epochs=20"),
        ("for i, x in enumerate(loader, 1):\n" + deep(4, TURN + "if i == 9:\n    break"), "steps=9"),
        ("for i, x in enumerate(loader):\n" + deep(4, TURN + "if i + 1 == 9:\n    break"), "steps=9"),
    ],
)
def test_a_training_is_as_long_as_its_loops_say(loop, extent):
    head = "def get_batch():\n    return torch.rand(4, 2)\n\n\n"
    assert f", {extent})" in " ".join(converted(MADE + head + loop).replace("(\n", "(").split())


@pytest.mark.parametrize(
    ("loop", "extent", "head"),
    [
        ("range(start, args.n)", "args.n", ""),
        ("range(start + 1, start + 20)", "19", "e += 1\n        "),
        ("range(5, 9)", "4", "e += 5\n        "),
        ("range(first, args.n + 1)", "args.n", "e += 1\n        "),
    ],
)
def test_epochs_have_their_numbers_and_begin_anew_where_a_checkpoint_says_another(loop, extent, head):
    source = (
        MADE.replace("n = 0", "first = 1") + f"for e in {loop}:\n    print(e)\n    for x in loader:\n" + deep(8, TURN)
    )
    made = convert(Script(Path("train.py"), source))
    assert f", epochs={extent})" in made.text
    assert f"    for e in s.epochs():\n        {head}print(e)\n" in made.text
    assert [look.what for look in made.looks] == [REMEMBERED.format("start")] * ("start" in loop)


REMEMBERED = "the script saves, resumes or changes this itself (`{}`)"
RESUMED = "if args.go_on:\n    n = torch.load('last.pt')\n"


def test_steps_that_begin_elsewhere_are_kept_or_a_line_to_look_at():
    made = converted(MADE + RESUMED + ASKS + deep(4, TURN + "n += 1\nif n > 9:\n    break"))
    assert "    kept = s.keep(n=n)\n    for x in s:\n        s.step(" in made
    assert made.endswith("            kept.n += 1\n            if kept.n > 9:\n                break\n")
    for head in ("while n < 9:\n    x = next(it)\n", "for i in range(n, 9):\n    x = next(it)\n"):
        script = Script(Path("train.py"), MADE + RESUMED + "it = iter(loader)\n" + head + deep(4, TURN + "n += 1"))
        made = convert(script)
        assert ", steps=9)" in made.text
        assert REMEMBERED.format("n") in [look.what for look in made.looks]
    epochs = "while n < 9:\n    for x in loader:\n" + deep(8, TURN) + "    n += 1\n"
    assert ", epochs=9)" in converted(MADE + epochs)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("        opt.zero_grad()\n", "", "gradients add up"),
        (
            "        opt.step()\n",
            "        opt.zero_grad()\n        opt.step()\n",
            "`opt.zero_grad()` is between backward() and the step",
        ),
        ("        opt.zero_grad()\n", "        if n:\n            opt.zero_grad()\n", "cleared in some steps"),
        (
            "    for x, y in loader:\n        opt.zero_grad()\n",
            "    opt.zero_grad()\n    for x, y in loader:\n",
            "gradients add up",
        ),
        ("opt.step()\n", "opt.step()\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "after the step"),
        (
            "        opt.step()\n",
            "        scale_(model.parameters())\n        opt.step()\n",
            "`scale_(model.parameters())` is between",
        ),
        ("        opt.step()\n", CLIPS + "        opt.step()\n", "clipped by their norm after their values"),
        ("    for x, y in loader:\n", "    loader = again()\n    for x, y in loader:\n", "made anew in the loop"),
        (
            "        opt.step()\n",
            "        for g in opt.param_groups:\n            g['lr'] = f()\n        opt.step()\n",
            "between",
        ),
        (
            "        opt.step()\n",
            "        clip(opt, 1.0)\n        opt.step()\n",
            "`clip(opt, 1.0)` is between backward()",
        ),
    ],
)
def test_an_update_in_another_order_is_refused(old, new, why):
    assert why in refused(HEAD + PLAIN.replace(old, new)).why


def test_what_is_kept_has_its_name_within_the_loss_too():
    loop = PLAIN.replace("F.mse_loss(model(x), y)", "(tau * F.mse_loss(model(x), y))")
    made = converted(f"{HEAD}tau = 1.0\n{loop}    tau *= 0.5\n")
    assert "            s.step(kept.tau * F.mse_loss(model(x), y))\n        kept.tau *= 0.5\n" in made


ACCUMULATED = """for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y)
        (loss / args.k).backward()
        if (i + 1) % args.k == 0:
            opt.step()
            opt.zero_grad()
            n += 1
"""


def test_a_division_by_the_batches_of_a_step_goes():
    made = converted(HEAD + "n = 0\n" + ACCUMULATED)
    assert "            s.step(loss)\n            if s.updated:\n                kept.n += 1\n" in made
    assert "    global_batch=loader.batch_size * args.k,\n    micro_batch=loader.batch_size,\n" in made


def test_a_step_once_in_so_many_batches_is_found_where_half_precision_is_optional():
    both = """        if amp:
            scaler.scale(loss).backward()
        else:
            (loss / args.k).backward()
        if (i + 1) % args.k == 0:
            if amp:
                scaler.step(opt)
                scaler.update()
            else:
                opt.step()
"""
    old = ACCUMULATED[ACCUMULATED.index("        (loss") : ACCUMULATED.index("            opt.zero_grad")]
    made = converted(HEAD + "n = 0\nscaler = torch.amp.GradScaler()\n" + ACCUMULATED.replace(old, both))
    assert "    micro_batch=loader.batch_size,\n    scaler=scaler if amp else None,\n" in made
    assert "if amp:\n                s.step(loss * args.k)\n            else:\n                s.step(loss)\n" in made
    assert "            if s.updated:\n                kept.n += 1\n" in made


def test_a_meter_is_told_of_turns_without_an_update_too():
    alone = PLAIN.replace("opt.step()\n", "opt.step()\n        meters.update(loss=1)\n")
    assert converted(HEAD + alone).endswith("            meters.update(loss=1)\n")
    lines = "        print(x)\n        n += 1\n        a, b = top(x)\n        meters.update(loss=a)\n"
    made = converted(HEAD + "n = 0\n" + PLAIN.replace("opt.step()\n", "opt.step()\n" + lines))
    guarded = "            print(x)\n            if s.updated:\n                kept.n += 1\n"
    assert guarded + "            a, b = top(x)\n            meters.update(" in made


EVALUATED = """for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
    print(loss.item())
    for x, y in held:
        loss = F.l1_loss(model(x), y)
        print(loss.item())
"""


def test_only_the_loss_of_the_step_is_that_of_all_workers():
    made = converted(HEAD + EVALUATED)
    assert "            total += s.loss\n        print(s.loss)\n" in made
    assert made.endswith("            loss = F.l1_loss(model(x), y)\n            print(loss.item())\n")


ENDLESS = """sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=int(1e10))
batches = iter(tqdm(DataLoader(data, sampler=sampler)))
while True:
    x = next(batches)
"""


def test_a_sampler_without_an_end_has_as_many_samples_as_there_are():
    made = converted(MADE + ENDLESS + deep(4, TURN + "n += 1\nif n >= 9:\n    break"))
    assert "with train.session(model, opt, DataLoader(data, sampler=sampler), steps=9) as s:\n" in made
    assert "replacement=True, num_samples=len(data))" in made


def test_batches_of_a_class_of_the_script_are_refused():
    own = "class Endless:\n    def next(self):\n        return 1\n\n\n"
    source = MADE + own + ENDLESS.replace("iter(tqdm(", "Endless((").replace("next(batches)", "batches.next()")
    error = refused(source + deep(4, TURN + "n += 1\nif n >= 9:\n    break"))
    assert error.why == "batches come from `batches`, an iterator"


def test_losses_of_a_loop_within_that_of_the_batches_are_refused():
    inner = "    for i in range(4):\n        model(x[i]).mean().backward()\n"
    micro = f"for x in loader:\n    opt.zero_grad()\n{inner}    opt.step()\n"
    assert (
        "a turn of the loop over micro-batches takes no batch"
        in refused(HEAD + f"for e in range(3):\n{deep(4, micro)}").why
    )


@pytest.mark.parametrize(
    ("loss", "summed"),
    [
        ("F.mse_loss(model(x), y, reduction='sum')", True),
        ("own_loss(model(x), y)", True),
        ("(model(x) - y).pow(2).sum()", True),
        ("(model(x) - y).pow(2).sum() / len(x)", False),
        ("torch.stack([(model(x) - y).pow(2).sum()]).mean()", False),
        ("own_loss(model(x), y) / len(x)", False),
    ],
)
def test_a_sum_that_nothing_divides_is_said_to_the_session(loss, summed):
    own = "\n\ndef own_loss(a, b):\n    lost = (a - b) ** 2\n    return lost.sum()\n\n\n"
    given = PLAIN.replace("F.mse_loss(model(x), y).backward()", f"loss = {loss}\n        loss.backward()")
    assert ('reduction="sum"' in converted(HEAD + own + given)) == summed


BEST = """best = 0


def test():
    global best
    if held() > best:
        best = held()


"""


def test_a_number_that_a_function_changes_is_a_line_to_look_at():
    made = convert(Script(Path("train.py"), HEAD + BEST + PLAIN + "    test()\n"))
    assert "kept" not in made.text
    assert [look.what for look in made.looks] == [REMEMBERED.format("best")]


TRAINER = """import torch


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.best = 0.0

    def train(self):
        for epoch in range(3):
            self.model.train()
            for x in self.loader:
                self.opt.zero_grad()
                self.model(x).mean().backward()
                self.opt.step()
            if held() > self.best:
                self.best = held()
                torch.save(1, "best.pt")
"""


def test_values_of_a_trainer_are_lines_to_look_at_unless_it_says_its_state():
    made = convert(Script(Path("train.py"), TRAINER))
    (look,) = made.looks
    assert look.what == REMEMBERED.format("self.best")
    assert [made.text.splitlines()[number - 1].strip() for number in look.lines] == ["self.best = held()"]
    states = "\n    def state_dict(self):\n        ...\n\n    def load_state_dict(self, state):\n        ...\n"
    made = convert(Script(Path("train.py"), TRAINER + states))
    assert "epochs=3, extra_state=self) as s:" in made.text
    assert made.looks == ()


def test_a_loop_in_an_imported_file_is_found(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loops.py").write_text("def fit(model, loader, opt):\n" + deep(4, PLAIN))
    Path("train.py").write_text("from loops import fit\n\nfit(model, loader, opt)\n")
    run(["convert", "--no-rehearse", "--write", "train.py"])
    assert "+++ b/loops.py" in capsys.readouterr().out
    assert "train.session(model, opt, loader, epochs=3)" in Path("loops.py").read_text()
    assert "session" not in Path("train.py").read_text()


def test_several_optimizers_are_refused():
    second = "    other = torch.optim.SGD(critic.parameters(), lr=1.0)\n"
    error = refused(HEAD + second.strip() + "\n" + PLAIN + deep(8, TURN.replace("opt.", "other.")))
    assert error.why == "several optimizers are stepped: `opt`, `other`"
    assert "several-models-and-optimizers" in error.do


def test_batches_of_a_function_that_is_called_from_elsewhere_are_no_training():
    source = "def fit(model, loader, opt):\n    for x in loader:\n" + deep(8, TURN)
    assert "the loop over epochs is in another file" in refused(source).why
