"""Scripts in a warm process: the same as with a fresh interpreter, or not run there at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.runtime.agent.forking import WarmCommand, warm_command


@pytest.fixture(autouse=True)
def ours_is_first(monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


@pytest.mark.parametrize("python", ["python", "python3", sys.executable])
def test_a_script_or_module_for_this_interpreter_runs_warm(python):
    assert warm_command([python, "x.py", "-u", "b"], {}) == WarmCommand("x.py", False, ("-u", "b"))
    assert warm_command([python, "-u", "x.py"], {}) == WarmCommand("x.py", False, ())
    assert warm_command([python, "-m", "a.b", "c"], {"A": "1"}) == WarmCommand("a.b", True, ("c",))


@pytest.mark.parametrize(
    "argv",
    [
        ["/usr/bin/env", "python", "x.py"],
        ["bash", "-c", "python x.py"],
        ["python", "-c", "pass"],
        ["python", "-O", "x.py"],
        ["python", "-m"],
        ["python"],
        ["/no/such/python", "x.py"],
        ["torchrun", "x.py"],
        [],
    ],
)
def test_anything_else_is_started_afresh(argv):
    assert warm_command(argv, {}) is None


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONHASHSEED", "MALLOC_ARENA_MAX"])
def test_variables_that_only_a_fresh_interpreter_obeys_make_a_cold_start(name):
    assert warm_command(["python", "x.py"], {name: "1"}) is None


# Each script is run by `python` and by `run_script` in a process that has imported much already; both must agree.
SCRIPTS = {
    "ends well": "print('hello')",
    "arguments": "import sys; print(sys.argv[1:], __name__, __file__.endswith('s.py'))",
    "exits": "import sys; print('out'); sys.exit(3)",
    "exits with words": "import sys; sys.exit('why')",
    "exits with true": "import sys; sys.exit(True)",
    "raises": "def deep():\n    raise ValueError('no')\ndeep()",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1/0",
    "own import": "import neighbour; print(neighbour.VALUE)",
    "at exit": "import atexit; atexit.register(print, 'bye'); print('work')",
    "at exit no more": "import atexit; atexit.register(print, 'bye'); atexit.unregister(print)",
    "fails at exit": (
        "import atexit, sys\nclass Fails:\n    def __repr__(self): return 'it'\n"
        "    def __call__(self, what): raise what\natexit.register(print, 'called')\n"
        "atexit.register(Fails(), ValueError('no'))\natexit.register(Fails(), SystemExit(4))"
    ),
    "a folder for a while": (
        "import tempfile, pathlib\nfolder = tempfile.TemporaryDirectory(dir='.')\n"
        "import atexit\natexit.register(lambda: print(pathlib.Path(folder.name).exists()))"
    ),
    "waits for a child": (
        "import multiprocessing, time\ndef late(): time.sleep(0.1); print('late', flush=True)\n"
        "multiprocessing.get_context('fork').Process(target=late).start(); print('begun', flush=True)"
    ),
    "threads": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "pickles": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)",
    "syntax": "print(",
    "input": "print(input())",
}
RUNNER = """
import sys
from sublet.runtime.agent.forking import WarmCommand, run_script
sys.argv = ["template"]
import os
code = run_script(WarmCommand(sys.orig_argv[-2], False, (sys.orig_argv[-1],)))
os._exit(code)
"""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_warm_as_it_runs_alone(name, tmp_path):
    (tmp_path / "s.py").write_text(SCRIPTS[name] + "\n", encoding="utf-8")
    (tmp_path / "neighbour.py").write_text("VALUE = 7\n", encoding="utf-8")
    runner = tmp_path / "elsewhere"
    runner.mkdir()
    (runner / "runner.py").write_text(RUNNER, encoding="utf-8")
    script = str(tmp_path / "s.py")
    cold, warm = (
        subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        for command in ([sys.executable, script, "arg"], [sys.executable, str(runner / "runner.py"), script, "arg"])
    )
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr.replace("<frozen runpy>", "") == cold.stderr


def test_a_script_that_is_not_there_ends_as_python_would(tmp_path):
    (tmp_path / "runner.py").write_text(RUNNER, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "runner.py"), str(tmp_path / "none.py"), "arg"]
    warm = subprocess.run(command, capture_output=True, text=True, check=False)
    assert warm.returncode == 2
    assert "none.py" in warm.stderr
    assert "Traceback" not in warm.stderr


def test_a_script_finds_what_its_own_path_names_even_where_the_warm_process_began(tmp_path):
    began, place = tmp_path / "began", tmp_path / "place"
    for folder in (began, place):
        folder.mkdir()
    told = RUNNER.replace("import os\n", f"import os\nos.environ['PYTHONPATH'] = {str(began)!r}\n")
    (began / "runner.py").write_text(told, encoding="utf-8")
    (began / "neighbour.py").write_text("VALUE = 7\n", encoding="utf-8")
    (place / "s.py").write_text(SCRIPTS["own import"] + "\n", encoding="utf-8")
    command = [sys.executable, str(began / "runner.py"), str(place / "s.py"), "arg"]
    warm = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (warm.returncode, warm.stdout) == (0, "7\n"), warm.stderr
