"""`sublet inspect` and `sublet convert`: a diff that is right, or why there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.cli.work.script.advice import inspect
from sublet.cli.work.script.convert import convert
from sublet.cli.work.script.facts import look_at
from sublet.cli.work.script.reading import Script
from sublet.cli.work.script.splice import CannotConvert

SCRIPTS = Path(__file__).parents[2] / "adoption" / "scripts"
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


def a_script(source, name="train.py"):
    return Script(Path(name), source)


def converted(source):
    return convert(a_script(source)).text


def refused(source):
    with pytest.raises(CannotConvert) as error:
        convert(a_script(source))
    return error.value


@pytest.mark.parametrize("name", ["best", "dcgan", "everything", "nanogpt", "odd", "slow_loader"])
def test_a_script_of_the_study_becomes_what_was_written_by_hand(name):
    before = Script.read(SCRIPTS / name / "before.py")
    assert convert(before).text == (SCRIPTS / name / "after.py").read_text()


def test_every_line_that_is_not_changed_stays_as_it_is_to_the_byte():
    source = HEAD + (
        "\nx   =  1 # odd,   and kept\n\n"
        "for epoch in range( args.epochs ):   # epochs\n"
        "    # a word before the batches\n"
        "    for i, (a,b) in enumerate(loader):\n"
        "        loss = F.mse_loss( model(a),b )  # kept\n"
        "        # a word between\n"
        "        opt.zero_grad()\n"
        "        loss.backward()  # goes back\n"
        "        opt.step()\n"
        "        if i % 10 == 0: print(loss.item())\n"
        "    print(epoch)\n"
    )
    assert converted(source) == HEAD.replace(
        "import DataLoader\n", "import DataLoader\n\nfrom sublet import train\n"
    ) + (
        "\nx   =  1 # odd,   and kept\n\n"
        "with train.session(model, opt, loader, epochs=args.epochs) as s:\n"
        "    for epoch in s.epochs():   # epochs\n"
        "        # a word before the batches\n"
        "        for i, (a,b) in enumerate(s):\n"
        "            loss = F.mse_loss( model(a),b )  # kept\n"
        "            # a word between\n"
        "            s.step(loss)  # goes back\n"
        "            if i % 10 == 0: print(loss.item())\n"
        "        print(epoch)\n"
    )


def test_a_loop_in_a_function_and_names_that_are_taken():
    source = (
        HEAD.replace("opt =", "s = ck = train = 1\nopt =")
        + "def main():\n"
        + "".join(f"    {line}\n" for line in PLAIN.splitlines())
    )
    assert (
        "    with elastic.session(model, opt, loader, epochs=3) as session:\n        for x, y in session:\n"
        "            session.step(F.mse_loss(model(x), y))\n"
    ) in converted(source)
    assert "from sublet import train as elastic\n" in converted(source)


def test_line_ends_of_windows_stay_and_a_loss_of_several_lines_too():
    source = HEAD + PLAIN.replace(
        "F.mse_loss(model(x), y)", "F.mse_loss(\n            model(x),\n            y,\n        )"
    )
    found = converted(source.replace("\n", "\r\n"))
    assert "\n" not in found.replace("\r\n", "")
    assert "        s.step(F.mse_loss(\n            model(x),\n            y,\n        ))\n" in found.replace(
        "\r\n", "\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "why", "line"),
    [
        ("        opt.step()\n", "        if x[0] > 0:\n            opt.step()\n", "not in every turn", 14),
        (
            "        opt.zero_grad()\n",
            "        if len(x) < 4:\n            continue\n",
            "`continue` is in the loop",
            12,
        ),
        ("in loader", "in tqdm(loader)", "not a DataLoader", 10),
        ("in loader", "in batches", "not a DataLoader", 10),
        ("range(3)", "range(0, 6, 2)", "is not `for epoch in range(N)`", 9),
        (".backward()", ".backward(retain_graph=True)", "backward", 12),
        ("opt.step()", "opt.step(closure)", "closure", 13),
        (
            "        opt.step()\n",
            "        F.l1_loss(model(x), y).backward()\n        opt.step()\n",
            "several losses",
            14,
        ),
        ("for epoch", "model = nn.DataParallel(model)\nfor epoch", "distributed already", 9),
        ("for epoch", "import sublet\nfor epoch", "sublet already", 1),
        ("for epoch", "from transformers import Trainer\nfor epoch", "transformers", 1),
        ("batch_size=4", "batch_sampler=some", "batch_sampler", 8),
        ("opt = torch.optim.SGD", "opt = MyOptimizer", "no optimizer", 1),
        ("opt = torch", "other = nn.Linear(1, 1)\nopt = torch", "", 0),
        ("(model.parameters()", "([*model.parameters(), *head.parameters()]", "whose parameters", 7),
        ("opt.zero_grad()", 'text = """a\n   b"""\n        opt.zero_grad()', "several lines", 11),
        ("        opt.step()", "        opt.step(); n = 1", "several statements", 13),
        ("F.mse_loss(model(x), y)", "(F.mse_loss(model(x), y, reduction='sum') / y.sum())", "divided", 12),
    ],
)
def test_what_is_not_understood_is_left_to_its_owner_with_the_line_and_what_to_do(old, new, why, line):
    source = (
        HEAD + PLAIN.replace("    for x", "    print(epoch)\n    for x") if "several lines" in why else HEAD + PLAIN
    )
    assert source.count(old) == 1 or old == "for epoch"
    source = source.replace(old, new, 1)
    if not why:
        assert "train.session(model, opt" in converted(source)  # another module is no reason
        return
    error = refused(source)
    assert why in error.why or why in error.do
    assert error.line == line + ("several lines" in why)
    assert error.do


CLIP = "        opt.step()\n"


@pytest.mark.parametrize(
    ("line", "said", "left"),
    [
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip_norm=1.0", ""),
        ("nn.utils.clip_grad_norm_(model.parameters(), max_norm=args.clip)", "clip_norm=args.clip", ""),
        ("nn.utils.clip_grad_value_(model.parameters(), 0.5)", "clip_value=0.5", ""),
        ("norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip_norm=1.0", "norm = s.grad_norm"),
        (
            "if args.clip > 0:\n            nn.utils.clip_grad_norm_(model.parameters(), args.clip)",
            "clip_norm=args.clip if args.clip > 0 else None",
            "",
        ),
    ],
)
def test_clipping_by_hand_becomes_that_of_the_session(line, said, left):
    found = converted(HEAD + PLAIN.replace(CLIP, f"        {line}\n{CLIP}"))
    assert f"epochs=3, {said}) as s:" in found
    assert "clip_grad" not in found
    assert left in found


@pytest.mark.parametrize(
    "line",
    [
        "nn.utils.clip_grad_norm_(model.head.parameters(), 1.0)",
        "nn.utils.clip_grad_norm_(weights, 1.0)",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)",
        "nn.utils.clip_grad_norm_(model.parameters(), len(x))",
        "print(nn.utils.clip_grad_norm_(model.parameters(), 1.0))",
        "if x[0] > 0:\n            nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "for p in model.parameters():\n            p.grad.clamp_(-1, 1)",
        "norms = [p.grad.norm() for p in model.parameters()]",
    ],
)
def test_an_edit_of_gradients_that_no_session_makes_is_left_to_its_owner(line):
    error = refused(HEAD + PLAIN.replace(CLIP, f"        {line}\n{CLIP}"))
    assert error.line in (13, 14)
    assert "clip_norm=" in error.do


@pytest.mark.parametrize("with_session", [False, True])
def test_clipping_by_hand_is_named_with_its_line(with_session):
    source = HEAD + PLAIN.replace(CLIP, f"        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n{CLIP}")
    if with_session:
        source = converted(HEAD + PLAIN) + "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    line = 1 + source[: source.index("nn.utils.clip")].count("\n")
    script = a_script(source)
    (found,) = (each for each in inspect(script, look_at(script)).findings if "clipped by hand" in each.what)
    assert (found.line, "clip_norm=" in found.do) == (line, True)


BEST = """best = float("inf")
seen = 0
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
        seen += 1
    held = F.mse_loss(model(data[0]), data[1]).item()
    print(total)
    if held < best:
        best = held
        torch.save(model, "best.pt")
print(best, f"{seen} seen")
"""


def test_what_a_loop_remembers_is_kept_and_what_begins_anew_is_not():
    assert converted(HEAD + BEST).partition("seen = 0\n")[2] == (
        "with train.session(model, opt, loader, epochs=3) as s:\n"
        "    kept = s.keep(best=best, seen=seen)\n"
        "    for epoch in s.epochs():\n"
        "        total = 0.0\n"
        "        for x, y in s:\n"
        "            loss = F.mse_loss(model(x), y)\n"
        "            s.step(loss)\n"
        "            total += loss.item()\n"
        "            if s.updated:\n"
        "                kept.seen += 1\n"
        "        held = F.mse_loss(model(data[0]), data[1]).item()\n"
        "        print(total)\n"
        "        if held < kept.best:\n"
        "            kept.best = held\n"
        "            if s.rank == 0:\n"
        '                torch.save(model, "best.pt")\n'
        'print(kept.best, f"{kept.seen} seen")\n'
    )


def test_what_a_loop_of_its_own_remembers_is_kept_too():
    source = (
        HEAD
        + "best = 9\nfor step in range(9):\n    model(1).backward()\n    opt.step()\n    opt.zero_grad()\n"
        + "    best = min(best, step)\n"
    )
    assert converted(source).endswith(
        "kept = ck.keep(best=best)\nfor step in range(ck.resume(), 9):\n    model(1).backward()\n    opt.step()\n"
        "    opt.zero_grad()\n    kept.best = min(kept.best, step)\n    ck.tick(step + 1)\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("for epoch", "def show():\n    print(best)\n\nshow()\nfor epoch", "used in show()"),
        ("        opt.zero_grad()\n", "        seen += 1\n        opt.zero_grad()\n", "before the step is made"),
    ],
)
def test_what_is_remembered_where_it_cannot_be_kept_is_left_to_its_owner(old, new, why):
    error = refused(HEAD + BEST.replace(old, new))
    assert why in error.why
    assert error.do


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for epoch", "def show():\n    best = 1\n    print(best)\n\nfor epoch"),
        ("for epoch", "def show(best):\n    print(best)\n\nfor epoch"),
    ],
)
def test_a_name_of_another_function_is_another(old, new):
    assert "kept = s.keep(best=best, seen=seen)" in converted(HEAD + BEST.replace(old, new))


def said_of(source, words):
    script = a_script(source)
    return [each.line for each in inspect(script, look_at(script)).findings if words in each.what]


def test_what_is_lost_with_the_process_is_named_with_its_line_in_sessions_too():
    assert said_of(HEAD + BEST, "remembered from turn") == [23, 19]
    assert said_of(HEAD + BEST, "every rank writes") == [24]
    mended = converted(HEAD + BEST)
    assert said_of(mended, "remembered from turn") == []
    assert said_of(mended, "every rank writes") == []
    broken = mended.replace("kept.", "").replace("            if s.rank == 0:\n    ", "")
    assert len(said_of(broken, "remembered from turn")) == 2
    assert len(said_of(broken, "every rank writes")) == 1


def test_a_session_in_a_script_that_resumes_by_itself_is_told_so():
    loads = "opt.load_state_dict(torch.load('last.pt'))\n"
    mended = converted(HEAD + BEST)
    assert said_of(mended, "resumes by itself") == []
    assert said_of(mended.replace("best = float", loads + "best = float"), "resumes by itself") == [11]
    assert said_of(HEAD + loads + BEST, "resumes by itself") == []  # it does so without a session, and rightly


def test_an_average_is_updated_with_the_session_where_more_comes_after_the_batches():
    average = "ema = torch.optim.swa_utils.AveragedModel(model)\n"
    source = HEAD + average + PLAIN + "        ema.update_parameters(model)\n    print(epoch)\n"
    assert "            if s.updated:\n                ema.update_parameters(model)\n" in converted(source)


def test_a_sum_is_told_to_the_session_wherever_it_is_made():
    for loss in ("F.mse_loss(model(x), y, reduction='sum')", "(model(x) - y).square().sum()", "torch.sum(model(x))"):
        assert ', reduction="sum") as s:' in converted(HEAD + PLAIN.replace("F.mse_loss(model(x), y)", loss)), loss
    mean = "(model(x) - y).square().sum(1).mean()"
    assert "reduction" not in converted(HEAD + PLAIN.replace("F.mse_loss(model(x), y)", mean))


def test_a_loop_over_steps_keeps_its_own_with_all_that_it_has():
    source = HEAD.replace("loader =", "sched = torch.optim.lr_scheduler.StepLR(opt, 5)\nunused =") + (
        "def closure():\n    opt.zero_grad()\n    loss = model(data).mean()\n    loss.backward()\n    return loss\n\n"
        "for _ in range(steps):\n    opt.step(closure)\n    sched.step()\n"
    )
    assert converted(source).endswith(
        "ck = train.checkpointed(model=model, optimizer=opt, scheduler=sched, steps=steps)\n"
        "for step in range(ck.resume(), steps):\n    opt.step(closure)\n    sched.step()\n    ck.tick(step + 1)\n"
    )
    assert "place is lost" in refused(source.replace("    sched", "    x = next(batches)\n    sched")).why


def test_a_loop_in_a_function_that_is_called_from_several_places_is_left_to_its_owner():
    """A session in it would be one for each call. One call, in the loop over epochs, is another matter."""
    epoch = HEAD + "def one(epoch):\n" + "\n".join(PLAIN.splitlines()[1:]) + "\n\nfor e in range(3):\n    one(e)\n"
    assert "def one(epoch, s):" in converted(epoch)
    assert "one(), which is one epoch" in refused(epoch + "one(3)\n").why
    indented = "".join(f"    {line}\n" for line in PLAIN.splitlines())
    trials = HEAD + "def trial(lr):\n" + indented + "\nfor lr in rates:\n    trial(lr)\n"
    assert "trial(), which" in refused(trials).why
    assert "train.session(" in converted(trials.replace("for lr in rates:\n    trial", "trial"))
    steps = (
        HEAD
        + "def fit(lr):\n    for step in range(9):\n        opt.zero_grad()\n        model(1).backward()\n"
        + "        opt.step()\n"
    )
    assert "checkpointed(" in converted(steps + "fit(1)\n")
    assert "fit(), which" in refused(steps + "while True:\n    fit(1)\n").why


def test_a_state_that_is_in_parts_is_not_kept_by_its_first_rank_alone():
    loop = "for step in range(9):\n    opt.zero_grad()\n    model(1).backward()\n    opt.step()\n"
    assert "checkpointed(" in converted(HEAD + loop)
    assert "a part of the state" in refused("from torch.distributed.fsdp import fully_shard\n" + HEAD + loop).why


def test_what_goes_wrong_is_said_with_its_line():
    source = HEAD + PLAIN.replace("model(x), y)", "model(x), y, reduction='sum')").replace("SGD", "LBFGS")
    source = source.replace(
        "import torch\n", "import torch\nimport torch.distributed as dist\nimport wandb\ndist.init_process_group()\n", 1
    )
    script = a_script(source.replace("SGD", "LBFGS"))
    found = inspect(script, look_at(script))
    said = {finding.what.split(":")[0]: finding.line for finding in found.findings}
    assert said["LBFGS cannot be elastic"] == 10
    assert said["the loss is a sum"] == 15
    assert said["loader deals all samples to every rank"] == 11
    assert said["wandb"] == 0
    assert any("every start begins at the beginning" in finding.what for finding in found.findings)
    assert found.converted is None
    assert found.by_hand.line == 4


def test_one_that_saves_and_loads_is_not_told_that_it_starts_over():
    source = (
        HEAD
        + "model.load_state_dict(torch.load('last.pt'))\n"
        + PLAIN
        + "    torch.save(model.state_dict(), 'last.pt')\n"
    )
    script = a_script(source)
    found = inspect(script, look_at(script))
    assert not any("begins at the beginning" in each.what or "saves nothing" in each.what for each in found.findings)


STREAM = """
class Lines(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from read(PART)

"""


@pytest.mark.parametrize(
    ("part", "more", "said"),
    [
        ("0", "", ["no epochs", "gives the same samples", "passes over"]),
        ("torch.utils.data.get_worker_info().id", "", ["no epochs", "passes over"]),
        (
            "0",
            "    def state_dict(self): ...\n    def load_state_dict(self, state): ...\n",
            ["no epochs", "same samples"],
        ),
        ("0", "    def state_dict(self): ...\n", ["no epochs", "same samples", "passes over"]),
    ],
)
def test_a_stream_is_told_what_it_lacks_and_no_more(part, more, said):
    source = HEAD.replace("\nmodel =", STREAM.replace("PART", part).rstrip() + "\n" + more + "\nmodel =") + PLAIN
    script = a_script(source)
    found = inspect(script, look_at(script))
    told = [each for each in found.findings if each.line == 6]
    assert len(told) == len(said)
    assert all(words in each.what for words, each in zip(said, told, strict=True))
    assert (found.by_hand.line, "steps=N" in found.by_hand.do) == (6, True)


def test_a_dataset_that_streams_has_a_place_and_parts_of_its_own():
    script = a_script(HEAD + "rows = load_dataset('wiki', streaming=True)\n" + PLAIN)
    assert [each.what for each in inspect(script, look_at(script)).findings if each.line == 9] == [
        "a stream has no epochs"
    ]


# ---------------------------------------------------------------------- the verbs


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(HEAD + PLAIN)
    path.chmod(0o750)
    return path


def test_a_diff_is_printed_and_nothing_is_written(plain, capsys):
    assert run(["convert", str(plain)]) == 0
    answer = capsys.readouterr()
    assert "+with train.session(model, opt, loader, epochs=3) as s:\n" in answer.out
    assert "nothing is written" in answer.err
    assert plain.read_text() == HEAD + PLAIN
    assert list(plain.parent.iterdir()) == [plain]


def test_what_is_written_can_be_taken_back_and_a_copy_is_never_replaced(plain, capsys):
    assert run(["convert", "-w", str(plain)]) == 0
    assert "train.session" in plain.read_text()
    kept = plain.with_name("train.py.orig")
    assert (kept.read_text(), plain.stat().st_mode & 0o777) == (HEAD + PLAIN, 0o750)
    plain.write_text(HEAD + PLAIN + "# more\n")
    assert run(["convert", "-w", str(plain)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert plain.read_text() == HEAD + PLAIN + "# more\n"
    assert kept.read_text() == HEAD + PLAIN


def test_a_script_that_cannot_be_converted_is_refused_with_its_line(plain, capsys):
    plain.write_text(HEAD + PLAIN.replace("range(3)", "range(0, 6, 2)"))
    assert run(["convert", "-w", str(plain)]) == 2
    error = capsys.readouterr().err
    assert "train.py:9" in error
    assert "next: train.session(..., epochs=N)" in error
    assert list(plain.parent.iterdir()) == [plain]


def test_what_is_found_is_printed_and_a_document_has_it_too(plain, capsys):
    assert run(["inspect", str(plain)]) == 0
    said = capsys.readouterr().out
    assert "optimizer    SGD opt" in said
    assert "every start begins at the beginning" in said
    assert f"next: sublet convert {plain}" in said
    assert run(["inspect", "--json", str(plain)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["converts_to"] == "session"
    assert found["optimizers"] == [{"name": "opt", "kind": "SGD", "line": 7}]
    assert run(["convert", "--json", str(plain)]) == 0
    assert json.loads(capsys.readouterr().out)["written"] is False


@pytest.mark.parametrize(
    ("data", "why"), [(b"for\n", "is no Python in line 1"), (b"\xff\xfe", "is not UTF-8"), (None, "cannot be read")]
)
def test_what_is_no_script_is_refused(tmp_path, capsys, data, why):
    path = tmp_path / "train.py"
    if data is not None:
        path.write_bytes(data)
    for verb in ("inspect", "convert"):
        assert run([verb, str(path)]) == 2
        assert why in capsys.readouterr().err


COUNTING = """import math
import torch
from torch.utils.data import DataLoader
MODULE import Accelerator

accelerator = Accelerator()
loader = DataLoader(samples, batch_size=4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
completed = 0
for epoch in EPOCHS(5):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        completed += 1
        if completed >= 20:
            break
"""


@pytest.mark.parametrize(
    ("module", "epochs"),
    [("from accelerate", "range"), ("from sublet.integrations.accelerate", "accelerator.epochs")],
)
def test_what_a_script_counts_beside_an_accelerator_is_kept_by_it(module, epochs):
    script = Script(Path("train.py"), COUNTING.replace("MODULE", module).replace("EPOCHS", epochs))
    found = [each for each in inspect(script, look_at(script)).findings if "remembered" in each.what]
    assert [each.what.split()[0] for each in found] == ["`completed`"]
    assert found[0].do.startswith("kept = accelerator.keep(completed=completed) before accelerator.epochs()")
