"""`sublet convert` and `sublet inspect`: what is changed, what is refused and where, what is to be looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.cli.work.script.convert import Converted, convert, inspect
from sublet.cli.work.script.reading import CannotConvert, Script
from sublet.runtime.rehearsal import rehearse as rehearsal
from sublet.runtime.rehearsal.report import Difference, Report, RunView

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


def a_script(source):
    return Script(Path("train.py"), source)


def converted(source):
    return convert(a_script(source)).text


def refused(source):
    with pytest.raises(CannotConvert) as error:
        convert(a_script(source))
    return error.value


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
    head = HEAD.replace("import DataLoader\n", "import DataLoader\n\nfrom sublet import train\n")
    assert converted(source) == head + (
        "\nx   =  1 # odd,   and kept\n\n"
        "with train.session(model, opt, loader, epochs=args.epochs) as s:\n"
        "    for epoch in s.epochs():   # epochs\n"
        "        # a word before the batches\n"
        "        for i, (a,b) in enumerate(s):\n"
        "            i = s.steps_in_epoch\n"
        "            loss = F.mse_loss( model(a),b )  # kept\n"
        "            # a word between\n"
        "            s.step(loss)  # goes back\n"
        "            if i % 10 == 0: print(s.loss)\n"
        "        print(epoch)\n"
    )


def test_a_text_of_several_lines_does_not_move_with_its_loop():
    source = HEAD + PLAIN.replace("        opt.step()\n", '        opt.step()\n        print("""a\n  b""")\n')
    assert '            print("""a\n  b""")\n' in converted(source)


def test_line_ends_of_windows_stay():
    found = converted((HEAD + PLAIN).replace("\n", "\r\n"))
    assert "\n" not in found.replace("\r\n", "")


def test_names_that_are_taken_are_left_to_the_script():
    made = converted(HEAD.replace("opt =", "s = train = 1\nopt =") + PLAIN)
    assert "from sublet import train as elastic\n" in made
    assert "with elastic.session(model, opt, loader, epochs=3) as session:\n" in made
    assert "            session.step(F.mse_loss(model(x), y))\n" in made


def test_what_a_function_calls_its_arguments_is_named_where_the_session_is():
    made = converted(
        HEAD
        + "def one(net, batches, optim, epoch):\n"
        + "    for x, y in batches:\n        optim.zero_grad()\n        F.mse_loss(net(x), y).backward()\n"
        + "        optim.step()\n\n\n"
        + "for epoch in range(3):\n    one(model, loader, opt, epoch)\n"
    )
    assert "def one(net, batches, optim, epoch, s):\n    for x, y in s:\n" in made
    assert "with train.session(model, opt, loader, epochs=3) as s:\n" in made
    assert "        one(model, loader, opt, epoch, s=s)\n" in made


@pytest.mark.parametrize(
    ("old", "new", "why", "line"),
    [
        (
            "        opt.step()\n",
            "        if x[0] > 0:\n            opt.step()\n",
            "the optimizer steps only `if x[0] > 0`",
            13,
        ),
        ("        opt.step()\n", "        opt.step(closure)\n", "optimizer.step(closure)", 13),
        (
            "        opt.step()\n",
            "        total = model.weight.grad.sum()\n        opt.step()\n",
            "`.grad` is used",
            13,
        ),
        ("        opt.step()\n", "        opt.step()\n        opt.step()\n", "is stepped twice for one batch", 14),
        ("for epoch in range(3):", "for epoch in forever:", "epochs or steps of this loop", 9),
        ("in loader", "in zip(loader, other)", "`zip(loader, other)` is no dataset", 10),
        ("in loader", "in numbers", "`range(9)` is no dataset", 11),
        ("        opt.step()\n", "        opt.step()\n        other.step()\n", "", 14),
        ("backward()", "backward(create_graph=True)", "other arguments than retain_graph", 12),
        (
            "    for x, y in loader:\n",
            "    for i in range(0, 80, 4):\n        x, y = a[i : i + 4], b[i : i + 4]\n",
            "by hand",
            10,
        ),
    ],
)
def test_what_is_not_converted_is_refused_with_its_line(old, new, why, line):
    head = HEAD + ("other = torch.optim.SGD(model.parameters(), lr=1.0)\n" if "other.step" in new else "")
    head += "numbers = range(9)\n" if "numbers" in new else ""
    error = refused(head + PLAIN.replace(old, new))
    assert why in error.why
    assert error.line == line + ("other.step" in new)
    assert error.do


@pytest.mark.parametrize(
    ("source", "why", "line"),
    [
        ("import ray\n", "ray", 1),
        ("import torch\nimport torchft\n", "torchft", 2),
        ("import adaptdl.torch\n", "adaptdl", 1),
        ("import deepspeed\n", "deepspeed", 1),
        ("import horovod.torch as hvd\n", "horovod", 1),
        ("from torch.distributed.fsdp import FullyShardedDataParallel\n", "fsdp", 1),
        ("from torch.nn.parallel import DistributedDataParallel as D\nmodel = D(model)\n", "DistributedData", 2),
        ("from torch.nn.parallel import DistributedDataParallel\n\nmodel = DistributedDataParallel(net)\n", "Distr", 3),
        ("from lightning.fabric import Fabric\n", "fabric", 1),
        ("from lightning import Fabric\n", "Fabric", 1),
    ],
)
def test_a_framework_is_known_by_its_import(source, why, line):
    error = refused(source + PLAIN)
    assert why in error.why
    assert error.line == line
    assert error.do


def test_what_is_distributed_only_by_a_flag_is_so_no_more():
    flag = 'ddp = int(os.environ.get("RANK", -1)) != -1\nif ddp:\n    init_process_group("nccl")\n'
    made = converted("import os\n" + HEAD + flag + PLAIN)
    hidden = (
        'hidden = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ}'
    )
    assert f"from sublet import train\n\n{hidden}\n" in made
    assert "os.environ.update(hidden)\nwith train.session(" in made


def test_a_group_that_is_joined_by_a_function_is_not_asked_in_a_session(tmp_path):
    (tmp_path / "utils.py").write_text(
        "import torch.distributed as dist\n\n\ndef is_one_of_many():\n    return dist.is_initialized()\n\n\n"
        "def size(group):\n    return dist.is_initialized()\n"
    )
    script = Script(tmp_path / "train.py", "import utils\n" + HEAD + "utils.init_distributed_mode(args)\n" + PLAIN)
    made = convert(script).text
    assert "os.environ.update(hidden)\nutils.is_one_of_many = lambda: False  # the group is the session's\n" in made
    assert "utils.size" not in made


LOGGED = """        for name, p in model.named_parameters():
            log(name, p.grad.norm())
            if not p.grad.isnan().any():
                grads[name] = p.grad.cpu()
"""


def test_a_log_of_gradients_is_left_out_and_is_a_line_to_look_at():
    made = convert(a_script(HEAD + PLAIN.replace("opt.step()\n", "opt.step()\n" + LOGGED)))
    lines = [number for number, line in enumerate(made.text.splitlines(), 1) if "no gradients are left" in line]
    assert ".grad" not in made.text
    assert len(lines) == 2
    assert [look.lines for look in made.looks if "gradient" in look.what] == [tuple(lines)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        opt.step()\n", "        opt.step()\n        total = model.weight.grad.norm()\n"),
        ("        opt.step()\n", "        log(model.weight.grad)\n        opt.step()\n"),
    ],
)
def test_gradients_that_more_than_a_log_is_made_of_are_refused(old, new):
    assert "`.grad` is used" in refused(HEAD + PLAIN.replace(old, new)).why


def test_a_function_that_steps_and_is_called_in_two_places_of_the_loop_is_named():
    inside = "        def update():\n" + "".join(f"    {line}\n" for line in PLAIN.splitlines()[2:])
    loop = "for epoch in range(3):\n    for x in loader:\n"
    error = refused(HEAD + loop + inside + "        if x:\n            update()\n        else:\n            update()\n")
    assert error.why == "update() makes steps, and is called in 2 places"
    assert error.line == 11


def test_a_second_training_is_refused_with_its_line():
    error = refused(HEAD + PLAIN + PLAIN)
    assert "a second training loop" in error.why
    assert error.line == 15


def test_folds_are_a_job_each():
    inside = "".join(f"    {line}\n" for line in PLAIN.splitlines())
    assert "in another loop" in refused(HEAD + "for fold in range(5):\n" + inside).why


def test_files_are_written_by_one_worker():
    made = converted(HEAD + PLAIN + '    if epoch:\n        torch.save(model.state_dict(), "m.pt")\nf = 1\n')
    assert (
        '        if epoch:\n            if s.rank == 0:\n                torch.save(model.state_dict(), "m.pt")\n'
        in made
    )


def test_a_function_that_saves_is_called_by_one_worker_and_others_are_lines_to_look_at():
    functions = 'def save_all():\n    torch.save(1, "m.pt")\n\n\ndef draw():\n    plt.savefig("m.png")\n\n\n'
    made = convert(a_script(HEAD + functions + PLAIN + "    save_all()\n    draw()\n"))
    assert made.text.endswith("        if s.rank == 0:\n            save_all()\n        draw()\n")
    assert [look.lines for look in made.looks if "writes this file" in look.what] == [(16,)]


def test_a_rank_of_the_script_is_not_that_of_the_session():
    made = converted(HEAD + PLAIN + "    if args.rank == 0:\n        torch.save(1, 'm.pt')\n")
    assert "        if args.rank == 0:\n            if s.rank == 0:\n                torch.save(1, 'm.pt')\n" in made


def test_lines_to_look_at_have_their_evidence():
    source = (
        HEAD
        + "total = {}\n"
        + PLAIN.replace(
            "F.mse_loss(model(x), y).backward()", "loss = F.mse_loss(model(x), y)\n        loss.backward()"
        ).replace("        opt.step()\n", "        opt.step()\n        seen += loss.item() * len(x)\n")
    )
    made = convert(a_script(source))
    lines = made.text.splitlines()
    (part,) = [look for look in made.looks if "`.item()`" in look.what]
    assert ["loss.item()" in lines[number - 1] for number in part.lines] == [True]


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*/after.py")), ids=lambda path: path.parent.name)
def test_a_session_that_was_written_by_the_guide_gives_no_false_alarm(path):
    made, looks = inspect(Script.read(path))
    assert made is None
    assert [look.what for look in looks if "`.item()`" not in look.what] == []


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*/before.py")), ids=lambda path: path.parent.name)
def test_each_script_of_the_study_is_converted(path):
    made, _ = inspect(Script.read(path))
    assert isinstance(made, CannotConvert if path.parent.name == "dcgan" else Converted), (
        made
    )  # which has two optimizers


def test_frameworks_change_by_their_two_lines():
    made = {
        name: converted((SCRIPTS / name / "before.py").read_text())
        for name in ("hf_trainer", "lightning", "accelerate")
    }
    assert "from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments\n" in made["hf_trainer"]
    assert "\nfrom sublet.integrations.transformers import Trainer\n" in made["hf_trainer"]
    assert "    strategy=SubletStrategy(global_batch=16),\n" in made["lightning"]
    assert "\nfor epoch in accelerator.epochs(5):\n" in made["accelerate"]


ACCELERATED = """from accelerate import Accelerator

accelerator = Accelerator()
model, loader = accelerator.prepare(model, loader)
for epoch in range(0, 3):
    for x in loader:
        accelerator.backward(model(x).mean())
"""


@pytest.mark.parametrize(
    ("extent", "head"),
    [
        ("0, 3", "accelerator.epochs(3):\n    for x"),
        ("2, 5", "accelerator.epochs(3):\n    epoch += 2\n    for x"),
    ],
)
def test_epochs_of_accelerate_have_their_numbers(extent, head):
    assert f"\nfor epoch in {head}" in converted(ACCELERATED.replace("0, 3", extent))


def test_epochs_of_accelerate_that_begin_elsewhere_are_refused():
    error = refused(ACCELERATED.replace("range(0", "range(args.start"))
    assert error.why == "the epochs begin at `args.start`"
    assert error.line == 5


def test_the_verb_prints_a_diff_and_writes_only_when_told(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(HEAD + PLAIN)
    run(["convert", "--no-rehearse", str(script)])
    told = capsys.readouterr()
    assert "+with train.session(model, opt, loader, epochs=3) as s:" in told.out
    assert script.read_text() == HEAD + PLAIN
    run(["convert", "--no-rehearse", "--write", str(script)])
    assert "train.session(" in script.read_text()
    assert (tmp_path / "train.py.orig").read_text() == HEAD + PLAIN


@pytest.mark.parametrize(
    ("kind", "alike"),
    [("", True), ("weights", False), ("loss", False), ("failure", False), ("line", True), ("file", True)],
)
def test_what_comes_of_it_is_rehearsed_before_it_is_written(kind, alike, tmp_path, monkeypatch, capsys):
    """A line or a file that differs is told, and keeps nothing from being written."""
    tried = []

    def rehearse(command, cwd, *, tell):
        assert Path(cwd) != tmp_path
        tried.append((command[1:], (Path(cwd) / command[1]).read_text()))
        differs = Difference(run="width", kind=kind, name="0.weight", step=3, evidence="it differs", advice="look")
        run = RunView(name="width", workers=2, seconds=1.0, steps=20, against="one", weights="equal")
        return Report(command=tuple(command), runs=(run,), differences=(differs,) if kind else ())

    monkeypatch.setattr(rehearsal, "rehearse", rehearse)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HEAD + PLAIN)
    code = run(["convert", "--write", "train.py", "--", "--epochs", "2"])
    assert [command[1:] for command, _ in tried] == [["--epochs", "2"]]
    assert "train.session(" in tried[0][1]
    assert code == (0 if alike else 1)
    assert ("train.session(" in Path("train.py").read_text()) == alike
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", *(["train.py.orig"] if alike else [])]
    assert tried[0][0][0] == "train.py"
    told = capsys.readouterr()
    assert ("--no-rehearse" in told.err) != alike
    assert ("it differs" in told.out) == bool(kind)


def test_inspect_says_the_same_without_a_change(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(HEAD + PLAIN)
    run(["inspect", str(script), "--json"])
    assert json.loads(capsys.readouterr().out)["converts_to"] == "session"
    script.write_text("import ray\n" + PLAIN)
    run(["inspect", str(script)])
    assert "not converted: line 1: ray runs the training loop" in capsys.readouterr().out
