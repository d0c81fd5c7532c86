"""Rows of files, trackers and logs that a loop writes: by one worker, where a statement only writes; or refused."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.advice import inspect  # noqa: E402
from sublet.cli.work.script.facts import look_at  # noqa: E402
from sublet.cli.work.script.reading import Script  # noqa: E402
from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_lost, run_struck  # noqa: E402

HEAD = """import csv
import json
import logging
import os
import random
import shutil
from pathlib import Path
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(16, 4)
y = 10 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)


def held_out():
    with torch.no_grad():
        return F.mse_loss(model(x), y).item()


"""
STEP = ("opt.zero_grad()", "loss = F.mse_loss(model(a), b)", "loss.backward()", "opt.step()")


def script(before="", turn="", after="", later=""):
    def inside(text, indent):
        return "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())

    loop = "for epoch in range(3):\n    for i, (a, b) in enumerate(loader):\n"
    loop += inside("\n".join((*STEP, turn)), 8) + inside(after, 4)
    return f"{HEAD}{before}\n{loop}{later}\ntorch.save(model.state_dict(), 'model.pt')\n"


LOGGER = """
class Logger:
    def __init__(self, path):
        self.path = path

    def log(self, *row):
        with open(self.path, "a") as f:
            f.write(",".join(map(str, row)) + "\\n")


log = Logger("rows.txt")
"""
HOLDER = """
class Run:
    def __init__(self, path):
        self.file = open(path, "a")
        self.rows = csv.writer(self.file)

    def log(self, *row):
        self.file.write("> ")
        self.rows.writerow(row)
        self.file.flush()


run = Run("rows.txt")
"""
FUNCTION = """
def note(path, *row):
    with open(path, "a") as f:
        print(*row, file=f)


"""
ROWS = {  # the whole script, and what stands under a condition
    "a file that is opened for each row": (
        script(after="with open('rows.txt', 'a') as f:\n    f.write(f'{epoch} {held_out()}\\n')"),
        "        if s.rank == 0:\n            with open('rows.txt', 'a') as f:\n                f.write(",
    ),
    "one that is opened before": (
        script(before="f = open('rows.txt', 'a', 1)", after="f.write(f'{epoch}\\n')\nf.flush()", later="f.close()"),
        "        if s.rank == 0:\n            f.write(f'{epoch}\\n')\n        f.flush()\n",
    ),
    "in an expression": (
        script(after="open('rows.txt', 'a').write(f'{epoch}\\n')"),
        "        if s.rank == 0:\n            open('rows.txt', 'a').write(",
    ),
    "csv": (
        script(before="rows = csv.writer(open('rows.txt', 'a', 1))", after="if epoch:\n    rows.writerow([epoch])"),
        "        if epoch:\n            if s.rank == 0:\n                rows.writerow([epoch])",
    ),
    "print": (
        script(before="f = Path('rows.txt').open('a', 1)", after="print(epoch, file=f, flush=True)\nprint(epoch)"),
        "        if s.rank == 0:\n            print(epoch, file=f, flush=True)\n        print(epoch)\n",
    ),
    "rows of steps": (
        script(before="f = open('rows.txt', 'a', 1)", turn="f.write(f'{epoch} {i}\\n')", later="f.close()"),
        "            if s.updated and s.rank == 0:\n                f.write(f'{epoch} {i}\\n')\n",
    ),
    "an object": (
        script(before=LOGGER, after="log.log(epoch, held_out())"),
        "        if s.rank == 0:\n            log.log(epoch, held_out())\n",
    ),
    "an object that holds its file": (
        script(before=HOLDER, turn="run.log(epoch, i)"),
        "            if s.updated and s.rank == 0:\n                run.log(epoch, i)\n",
    ),
    "a function": (
        script(before=FUNCTION, after="note('rows.txt', epoch)"),
        "        if s.rank == 0:\n            note('rows.txt', epoch)\n",
    ),
    "logging": (
        script(
            before="log = logging.getLogger()\nlog.addHandler(logging.FileHandler('rows.txt'))",
            after="log.error(epoch)",
        ),
        "        if s.rank == 0:\n            log.error(epoch)\n",
    ),
    "a row behind the loop": (
        script(later="with open('rows.txt', 'a') as f:\n    f.write(str(held_out()))"),
        "if s.rank == 0:\n    with open('rows.txt', 'a') as f:\n        f.write(str(held_out()))\n",
    ),
    "a file as a whole": (
        script(after="with open('rows.txt', 'w') as f:\n    json.dump(epoch, f)"),
        "        if s.rank == 0:\n            with open('rows.txt', 'w') as f:\n",
    ),
    "a file that is put in the place of another": (
        script(after="Path('new.txt').write_text(str(epoch))\nos.replace('new.txt', 'rows.txt')"),
        "        if s.rank == 0:\n            os.replace('new.txt', 'rows.txt')\n",
    ),
    "one that is moved by its path": (
        script(after="p = Path('new.txt')\np.write_text(str(epoch))\np.rename('rows.txt')"),
        "        if s.rank == 0:\n            p.rename('rows.txt')\n",
    ),
    "old ones that are removed": (
        script(
            after="Path(f'{epoch}.old').write_text('x')\nPath('rows.txt').write_text('x')\n"
            "for old in Path('.').glob('*.old'):\n    old.unlink()"
        ),
        "            if s.rank == 0:\n                old.unlink()\n",
    ),
    "a folder that is made and removed": (
        script(
            after="if not os.path.exists('d'):\n    os.mkdir('d')\nos.makedirs('e', exist_ok=True)\n"
            "Path('rows.txt').write_text('x')\nshutil.rmtree('d')"
        ),
        "            if s.rank == 0:\n                os.mkdir('d')\n        os.makedirs('e', exist_ok=True)\n",
    ),
    "a folder that goes behind the loop": (
        script(after="os.makedirs('d', exist_ok=True)\nPath('rows.txt').write_text('x')", later="shutil.rmtree('d')\n"),
        "\nif s.rank == 0:\n    shutil.rmtree('d', ignore_errors=True)\n",
    ),
    "a copy of a file": (
        script(after="torch.save(model.state_dict(), 'last.pt')\nshutil.copyfile('last.pt', 'rows.txt')"),
        "        if s.rank == 0:\n            shutil.copyfile('last.pt', 'rows.txt')\n",
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of files that the scripts do not close
@pytest.mark.parametrize("name", ROWS)
def test_one_worker_writes_and_alone_it_comes_to_the_same(name, tmp_path):
    source, under = ROWS[name]
    mended = converted(source)
    assert under in mended
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0
    assert differs(expected, run_struck(mended, tmp_path / "struck", 4, 8)) == 0.0  # between two epochs
    gc.collect()
    if name == "logging":
        return  # the handler of one process is there in the next one
    rows = (tmp_path / "plain" / "rows.txt").read_bytes()
    assert (tmp_path / "calm" / "rows.txt").read_bytes() == rows
    assert (tmp_path / "struck" / "rows.txt").read_bytes() == rows


LEFT = {  # nothing of it is anybody's rows
    "what is read": "with open('model.pt') as f:\n    text = f.read()\nprint(text)",
    "what is printed": "print(epoch, held_out())",
    "what is told": "logging.info(epoch)",
    "a text of its own": "import io\nf = io.StringIO()\nf.write('x')\nprint(f.getvalue())",
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_read_or_printed_is_for_all(name):
    mended = converted(script(after=LEFT[name]))
    assert "train.session(" in mended
    assert "s.rank" not in mended


ADDS = "with open('rows.txt', 'a') as f:\n    "
TEST = FUNCTION + "def test(epoch):\n    model.eval()\n    note('rows.txt', epoch)\n"
REFUSED = {
    "what comes of it is used": (f"{TEST}    return epoch\n\n\n", "t = test(epoch)"),
    "`now` is given a value there, and used elsewhere": (
        "best = 9.0",
        f"{ADDS}now = held_out()\n    f.write(str(now))\nif now < best:\n    best = now",
    ),
    "random numbers are drawn there": ("", f"{ADDS}f.write(str(random.random()))"),
    "a model is put into another mode there": (TEST, "test(epoch)"),
    "the loop may be left there": ("", f"{ADDS}f.write('x')\n    if epoch == 7:\n        break"),
    "`seen` changes there": ("seen = []", f"{ADDS}seen.append(epoch)\n    f.write(str(seen))"),
    "each opens the file, and empties it": ("", "f = open('rows.txt', 'w')\nf.write(str(epoch))\nf.close()"),
}


MOVED = {
    "`names` changes there": ("names = ['a', 'b', 'c']", "os.remove(names.pop(0))"),
    "what comes of it is used": ("", "p = Path('a').rename('b')\nprint(p)"),
}


@pytest.mark.parametrize("why", MOVED)
def test_what_only_the_first_worker_can_do_is_left_to_one_or_refused(why):
    before, after = MOVED[why]
    source = script(before=before, after=after)
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert (
        f"each worker would do it, and fail where another has, and it cannot be left to one: {why}" in error.value.why
    )
    assert source.splitlines()[error.value.line - 1].strip() == after.splitlines()[0]
    advised = after.replace("os.remove(names.pop(0))", "old = names.pop(0)\nos.remove(old)")
    advised = advised.replace("p = Path('a').rename('b')\nprint(p)", "Path('a').rename('b')")
    last = advised.splitlines()[-1]
    asked = " and os.path.exists(old)" if last == "os.remove(old)" else ""
    assert f"        if s.rank == 0{asked}:\n            {last}\n" in converted(script(before=before, after=advised))


@pytest.mark.parametrize("line", ["os.makedirs(f'e{epoch}')", "os.mkdir('d')", "(Path('d') / '1').mkdir(parents=True)"])
def test_a_folder_that_may_be_there_is_refused_and_what_is_advised_is_converted(line):
    for source in (script(after=line), script(before=line.replace("{epoch}", ""))):
        with pytest.raises(CannotConvert, match="a folder is made that may be there") as error:
            converted(source)
        assert error.value.do == "exist_ok=True"
        assert "mkdir" in source.splitlines()[error.value.line - 1] or "makedirs" in source
    asked = f"if not os.path.isdir('d'):\n    {line}"
    assert "train.session(" in converted(script(after=asked))
    if "os.mkdir" not in line:
        assert "train.session(" in converted(script(after=f"{line[:-1]}, exist_ok=True)"))


def test_text_is_no_path():
    mended = converted(script(before="p = Path('a.pt')", after="name = str(p).replace('.pt', '')\nprint(name)"))
    assert "s.rank" not in mended


@pytest.mark.parametrize("why", REFUSED)
def test_rows_that_cannot_be_left_to_one_worker_are_refused(why):
    before, after = REFUSED[why]
    source = script(before=before, after=after)
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert why in error.value.why
    assert source.splitlines()[error.value.line - 1].strip() == after.splitlines()[0]


def test_an_object_that_keeps_its_rows_and_writes_all_of_them_is_refused_as_one_that_remembers():
    keeps = LOGGER.replace("self.path = path", "self.path, self.rows = path, []")
    keeps = keeps.replace("        with open", "        self.rows.append(row)\n        with open").replace('"a"', '"w"')
    keeps = keeps.replace("map(str, row)", "map(str, self.rows)")
    with pytest.raises(CannotConvert, match="`log` is of class Logger, which remembers"):
        converted(script(before=keeps, after="log.log(epoch)"))


@pytest.mark.parametrize("mode", ["w", "x", "wt"])
def test_a_file_that_is_held_open_and_begins_empty_is_refused(mode):
    source = script(before=f"f = open('rows.txt', '{mode}')", after="f.write(str(epoch))")
    with pytest.raises(CannotConvert, match="`f` begins empty in every process that goes on"):
        converted(source)


def test_a_file_that_every_start_begins_anew_and_the_loop_adds_to_is_refused():
    begins, adds = "with open('rows.txt', 'w') as f:\n    f.write('epoch\\n')", f"{ADDS}f.write('x')"
    with pytest.raises(CannotConvert, match=r"'rows\.txt' begins empty in every process"):
        converted(script(before=begins, after=adds))
    asked = "if not os.path.exists('rows.txt'):\n    with open('rows.txt', 'w') as f:\n        f.write('epoch\\n')"
    assert "train.session(" in converted(script(before=asked, after=adds))
    other = begins.replace("rows", "other")  # by the same name, `f`
    assert "train.session(" in converted(script(before=other, after=adds))


MAIN = """
def main(EPOCHS):
    for epoch in range(3):
        for a, b in loader:
            opt.zero_grad()
            F.mse_loss(model(a), b).backward()
            opt.step()
    BEHIND


if __name__ == "__main__":
    main(GIVEN)
    AWAY
torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(("epochs", "given"), [("", ""), ("epochs", "3")])
def test_a_row_where_nobody_knows_of_the_session_is_refused(epochs, given):
    main = HEAD + MAIN.replace("EPOCHS", epochs).replace("range(3)", f"range({epochs or 3})").replace("GIVEN", given)
    row = "open('rows.txt', 'a').write('done')"
    away = main.replace("    BEHIND\n", "").replace("AWAY", row)
    with pytest.raises(CannotConvert, match="the session is in a function") as error:
        converted(away)
    assert away.splitlines()[error.value.line - 1].strip() == row
    assert f"    if s.rank == 0:\n        {row}\n" in converted(main.replace("BEHIND", row).replace("    AWAY\n", ""))


def said_of(source):
    read = Script(Path("train.py"), source)
    return [each.line for each in inspect(read, look_at(read)).findings if "every rank writes it" in each.what]


@pytest.mark.parametrize("name", [name for name in ROWS if "behind" not in name])
def test_inspect_says_who_writes_and_nothing_of_what_one_worker_does(name):
    source, _ = ROWS[name]
    lines = source.splitlines()
    loop = next(at for at, line in enumerate(lines, 1) if line.startswith("for epoch in"))
    assert said_of(source)
    assert all(at > loop for at in said_of(source))
    assert said_of(converted(source)) == []


NEWEST = "Path(f'{epoch}.txt').write_text('x')\n"
REMOVALS = {  # of the file of the epoch before; what converted scripts say of it
    "by its name": ("", f"{NEWEST}if epoch:\n    os.remove(f'{{epoch - 1}}.txt')", "exists(f'{epoch - 1}.txt'):"),
    "by a name that is kept": (
        "last = ''",
        f"{NEWEST}if last:\n    os.unlink(last)\nlast = f'{{epoch}}.txt'",
        "if s.rank == 0 and os.path.exists(kept.last):",
    ),
    "by its path": (
        "",
        f"{NEWEST}if epoch:\n    Path(f'{{epoch - 1}}.txt').unlink()",
        "Path(f'{epoch - 1}.txt').unlink(missing_ok=True)",
    ),
    "a folder": (
        "",
        "os.makedirs(str(epoch), exist_ok=True)\nif epoch:\n    shutil.rmtree(str(epoch - 1),)",
        "shutil.rmtree(str(epoch - 1), ignore_errors=True)",
    ),
    "in a function": (
        "def rotate(number):\n    if number >= 0:\n        os.remove(f'{number}.txt')\n\n",
        f"{NEWEST}rotate(epoch - 1)",
        "        if os.path.exists(f'{number}.txt'):\n            os.remove(f'{number}.txt')",
    ),
    "that is listed": ("", f"for old in Path('.').glob('?.txt'):\n    old.unlink()\n{NEWEST}", "old.unlink()"),
    "that is asked for": (
        "",
        f"{NEWEST}if os.path.exists(f'{{epoch - 1}}.txt'):\n    os.remove(f'{{epoch - 1}}.txt')",
        "if s.rank == 0:\n                os.remove(f'{epoch - 1}.txt')",
    ),
}


@pytest.mark.parametrize("name", REMOVALS)
def test_what_was_removed_after_the_last_checkpoint_is_no_error_when_it_is_removed_again(name, tmp_path):
    before, after, says = REMOVALS[name]
    source = script(before=before, after=after)
    mended = converted(source)
    assert says in mended
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0
    assert differs(expected, run_struck(mended, tmp_path / "struck", 4, 9)) == 0.0
    assert differs(expected, run_lost(mended, tmp_path / "lost", 5, 9)) == 0.0
    names = {
        folder: {path.name for path in (tmp_path / folder).iterdir()} - {"checkpoints"} for folder in ("plain", "lost")
    }
    assert names["lost"] == names["plain"]


def test_a_removal_that_cannot_be_asked_about_is_refused_with_the_line_to_write():
    source = script(after=f"from os import remove\n{NEWEST}if epoch:\n    remove(f'{{epoch - 1}}.txt')")
    with pytest.raises(CannotConvert, match="a file is removed, and a process that goes on") as error:
        converted(source)
    assert "`if os.path.exists(path):`" in error.value.do
    assert "remove(f'" in source.splitlines()[error.value.line - 1]
