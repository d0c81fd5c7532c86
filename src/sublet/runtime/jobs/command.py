"""The command of a job: from the text of `run` to the arguments of one worker, and whether its script uses the SDK.

Sublet starts every worker itself and sets the variables that torchrun would set, so a leading `torchrun` is taken
away: what it would launch is launched once per worker.

A job keeps the interpreter that was active (`JobSpec.python`). A path in the command is the user's own choice, and
stays. A node that does not see the interpreter has what `setup` made there, else its own (`agent.interpreter`).

The text is searched for the words by which groups are joined. If there are none, a model is trained, and nothing is
run that cannot be read, each of several workers would train a copy of its own. Otherwise nothing is said.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from sublet.errors import InvalidValue
from sublet.runtime.jobs.spec import JobSpec

SHELL = re.compile(r"[|&;<>()$`\\*?\[\]#~\n{}!]|^\w+=")  # needs a shell to be understood
PYTHON = re.compile(r"python(\d+(\.\d+)?)?$")
SHELLS = ("bash", "sh", "zsh", "dash")
SHELL_TEXT = re.compile(r"-\w*c$")  # the option before a text
PARTS = re.compile(r"&&|\|\||[;&|\n]")
BEFORE = ("env", "exec", "command", "nice", "nohup", "time", "if", "then", "else", "do", "!", "{", "(")
VARIABLE = re.compile(r"\w+=")
MODULES = "torch.distributed."  # run and launch: torchrun by other names
FLAGS = {"standalone", "no-python", "no_python", "m", "module"}  # of torchrun, without a value
SCRIPT_BYTES = 4 << 20  # a longer file is no hand-written script


def argv_from_run(text: str) -> tuple[str, ...]:
    """A plain command as its words; anything that needs a shell as a script of bash that stops at the first error."""
    stripped = text.strip()
    if not stripped:
        raise InvalidValue("run", text, "a command, such as python train.py")
    if SHELL.search(stripped):
        return ("bash", "-euo", "pipefail", "-c", stripped)
    try:
        words = shlex.split(stripped)
    except ValueError as error:
        raise InvalidValue("run", text, f"a command with its quotes closed ({error})") from None
    return without_torchrun(words)


def without_torchrun(words: Sequence[str]) -> tuple[str, ...]:
    """`torchrun --nproc-per-node 4 train.py --lr 1` is `python train.py --lr 1`, once per worker."""
    if not is_torchrun(words):
        return tuple(words)
    rest = list(words[1:] if words[0] == "torchrun" else words[3:])
    module = bare = False
    while rest and rest[0].startswith("-"):
        name, equals, _ = rest.pop(0).lstrip("-").partition("=")
        module |= name in {"m", "module"}
        bare |= name in {"no-python", "no_python"}
        if name not in FLAGS and not equals and rest:
            rest.pop(0)
    if not rest:
        raise InvalidValue("run", shlex.join(words), "torchrun and a script")
    return tuple(rest) if bare else ("python", *(("-m",) if module else ()), *rest)


def is_torchrun(words: Sequence[str]) -> bool:
    """Whether the command is `torchrun`, or `python -m torch.distributed.run`."""
    if tuple(words[:1]) == ("torchrun",):
        return True
    return len(words) > 2 and bool(PYTHON.search(words[0])) and words[1] == "-m" and words[2].startswith(MODULES)  # noqa: PLR2004 - python, -m, module


def plain(argv: Sequence[str]) -> tuple[str, ...]:
    """The first command of Python's that the words lead to, through `env` and a shell; else the words."""
    return next(_commands(argv), tuple(argv))


def only(argv: Sequence[str]) -> tuple[str, ...]:
    """The command of Python's that is all that the words run, through `env` and a shell; else the words."""
    is_line = bool(argv) and Path(argv[0]).name in SHELLS
    alone = not is_line or sum(bool(part.strip()) for part in PARTS.split(argv[-1].strip().replace("\\\n", " "))) == 1
    return plain(argv) if alone else tuple(argv)


def _commands(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All that start a Python, in order."""
    words = list(argv)
    while words and (words[0] in BEFORE or VARIABLE.match(words[0]) or (words[0].startswith("-") and words != [*argv])):
        words.pop(0)
    if words and PYTHON.search(Path(words[0]).name):
        yield tuple(words)
    elif words and Path(words[0]).name in SHELLS and any(SHELL_TEXT.match(word) for word in words[1:-1]):
        for part in PARTS.split(words[-1].replace("\\\n", " ")):
            try:
                yield from _commands(shlex.split(part, comments=True))
            except ValueError:  # a quote that another part closes
                continue


def script_of(argv: Sequence[str], cwd: str) -> Path | None:
    """The Python file that a worker runs, if the command names one; it need not exist."""
    if argv and argv[0] == "env":
        argv = plain(argv)
    if argv and PYTHON.search(Path(argv[0]).name):
        return _script_of_python(argv[1:], cwd)
    if argv and Path(argv[0]).name in SHELLS:
        words = re.findall(r"[\w./-]+\.py\b", argv[-1])
        found = (Path(cwd) / word for word in words)
        return next((path for path in found if path.is_file()), None)
    if argv and argv[0].endswith(".py"):
        return Path(cwd) / argv[0]
    return None


def _script_of_python(words: Sequence[str], cwd: str) -> Path | None:
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "-m" and words:
            base = Path(cwd).joinpath(*words[0].split("."))
            inside = base / "__main__.py"
            return (
                inside if inside.is_file() else base.with_suffix(".py") if base.with_suffix(".py").is_file() else None
            )
        if word in {"-c", "-"}:
            return None
        if word in {"-X", "-W"} and words:
            words.pop(0)
        elif not word.startswith("-"):
            return Path(cwd) / word
    return None


def refuse_missing_script(argv: Sequence[str], cwd: str) -> None:
    """Better to hear of a missing script now than from a worker on a rented node."""
    script = script_of(argv, cwd)
    if script is not None and not script.is_file():
        raise InvalidValue("run", shlex.join(argv), f"a script that exists; there is no {script.name} in {cwd}")


def uses_sdk(argv: Sequence[str], cwd: str) -> bool:
    """Whether the script, or a module beside it that it imports, trains in a session of `sublet`."""
    return any(_opens_session(words, cwd) for words in (argv, *_commands(argv)))


def _opens_session(argv: Sequence[str], cwd: str) -> bool:
    if "-c" in argv and PYTHON.search(Path(argv[0]).name):
        return _has_session(argv[argv.index("-c") + 1] if argv.index("-c") + 1 < len(argv) else "")
    script = script_of(argv, cwd)
    if script is None:
        return False
    source = _source(script)
    if _has_session(source):
        return True
    beside = {name.partition(".")[0] for name in _imports(source)}
    return any(_has_session(_source(script.parent / f"{name}.py")) for name in beside)


def _has_session(source: str) -> bool:
    """It imports `sublet`, and not for checkpoints of a loop of its own alone."""
    if not any(name == "sublet" or name.startswith("sublet.") for name in _imports(source)):
        return False
    names = "|".join(re.findall(r"\btrain as (\w+)", source) or ["train"])
    words = set(re.findall(rf"\b(?:{names})\.(\w+)", source))
    return "checkpointed" not in words or "session" in words


def _source(path: Path) -> str:
    try:
        if path.is_file() and path.stat().st_size <= SCRIPT_BYTES:
            return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        pass
    return ""


def _imports(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the script will say so itself, to its own log
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


NAMES = ("python", "python3")
ANSWERS_S = 20.0  # a Python on a disk that sleeps
LOOK = (
    "import sys; sys.path.pop(0); import importlib.util as u, json, os; p = sys.prefix; "
    "e = p != sys.base_prefix or os.path.isdir(os.path.join(p, 'conda-meta')); "
    "print(json.dumps([sys.executable, e, u.find_spec('sublet') is not None]))"
)


class Interpreter(NamedTuple):
    """An interpreter's own facts."""

    path: str
    active: bool  # of a virtual or conda environment, and not the system's
    has_sublet: bool


def with_python(spec: JobSpec, environment: Mapping[str, str] = os.environ) -> JobSpec:
    """The job with the interpreter that is active here, unless it has one, or runs in a container.

    The system's Python is left where the script needs `sublet` and only Sublet's own environment has it.
    """
    if spec.python or spec.image:
        return spec
    names = (shutil.which(name, path=environment.get("PATH", "")) for name in NAMES)
    found = next((_look(path, spec.cwd) for path in names if path), None)
    if found is None or (spec.sdk and not found.active and not found.has_sublet):
        return spec
    return replace(spec, python=found.path)


def python_lines(spec: JobSpec) -> list[str]:
    """Lines on it at submit, and a warning where it is seen to lack what the script imports."""
    if spec.image:
        return ["python: that of the image"]
    named = _named(spec)
    path = named or spec.python
    if not path:
        return ["python: that of its nodes, or what setup makes there"]
    lines = [f"python: {path} ({'named by the command' if named else _active(spec)})"]
    found = _look(path, spec.cwd)
    if spec.sdk and found is not None and not found.has_sublet:
        lines.append(f"warning: {path} has no sublet, which the script imports; install it there, or let setup do so")
    return lines


def _active(spec: JobSpec) -> str:
    """That it was active here, and what of the job may yet choose another where it runs."""
    may = [name for name, there in (("setup", spec.setup), ("PATH in envs", "PATH" in spec.env)) if there]
    words = only(spec.argv)
    if any(word.startswith("PATH=") for word in spec.argv) or (words and Path(words[0]).name in SHELLS):
        may.append("a line of the command")
    return f"active here, unless {' or '.join(may)} chooses another" if may else "active here"


def _named(spec: JobSpec) -> str:
    """The path in the command, where one word of it is an interpreter's; "" for a plain `python`."""
    words = plain(spec.argv)
    if not words or "/" not in words[0] or not PYTHON.search(Path(words[0]).name):
        return ""
    return os.path.normpath(Path(spec.cwd) / words[0])  # of a link it is the link: a virtual environment is one


@cache
def _look(path: str, cwd: str) -> Interpreter | None:
    """None where it does not answer: it is of another machine, or no Python."""
    place = cwd if Path(cwd).is_dir() else "/"
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [path, "-c", LOOK], cwd=place, capture_output=True, text=True, check=True, timeout=ANSWERS_S
        )
        executable, active, has_sublet = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(executable, active, has_sublet) if os.path.isabs(executable) else None  # noqa: PTH117 - a text


YES, NO, UNSEEN = "yes", "no", ""
MOST_FILES: Final = 200  # a script of more is not looked through
ENVIRONMENTS: Final = ("venv", "env", "site-packages", "node_modules")
JOINS: Final = re.compile(
    r"init_process_group|[._]distributed|distributed[._]\w|import [^\n]*\bdistributed\b|Distributed[A-Z]"
    r"|init_device_mesh|\bDDP\b|FSDP|fully_shard|\baccelerate\b|\bAccelerator\b|[Ll]ightning|\bFabric\b|Trainer|TrainingArguments|\btrl\b"
    r"|deepspeed|horovod|\bhvd\b|\bray\b|\bdask\b|mpi4py|\bmpi(run|exec)\b|tf\.distribute|TF_CONFIG"
    r"|MirroredStrategy|torch_xla|\bignite\b|\bcomposer\b|colossalai|[Mm]egatron|\bnemo\b|torchft|torchtitan|torchtune"
    r"|axolotl|adaptdl|hivemind|torchrun|\bsession\(|sublet\.integrations"
    r"|\b(LOCAL_|NODE_|GROUP_|OMPI_COMM_WORLD_)?RANK\b|WORLD_SIZE|MASTER_(ADDR|PORT)"  # it knows that it is one of many
    r"|SLURM_(PROCID|NTASKS|NODEID)|SUBLET_(WORKER_ID|HOST|MAX_WORKERS)"
)
HIDES: Final = re.compile(  # what is run by this is not in the text
    r"\b(subprocess|importlib|__import__|runpy|ctypes|socket|socketserver|multiprocessing\.managers|cpp_extension)\b"
    r"|\bos\.(system|popen|fork|exec\w*|spawn\w*|posix_spawn\w*)\b|(?<![.\w])(exec|eval)\("
)
PLAIN: Final = re.compile(  # libraries that join no group by themselves
    r"PIL|absl|av|click|cv2|datasets|diffusers|dotenv|einops|evaluate|flax|gymnasium|h5py|huggingface_hub|imageio"
    r"|jax|joblib|librosa|loguru|matplotlib|mlflow|networkx|nltk|numpy|omegaconf|optax|pandas|peft|plotly|polars|psutil"
    r"|pyarrow|pydantic|regex|requests|rich|safetensors|scipy|seaborn|sentencepiece|skimage|sklearn|soundfile"
    r"|statsmodels|sublet|tensorboard|tensorboardX|tiktoken|timm|tokenizers|toml|torch|torchaudio|torchinfo|torchmetrics"
    r"|torchsummary|torchtext|torchvision|tqdm|transformers|typer|typing_extensions|wandb|webdataset|yaml"
)
LEARNS: Final = re.compile(
    r"^\s*(?:import|from)\s+(torch|tensorflow|keras|jax|flax|sklearn|transformers)\b", re.MULTILINE
)
NAMED: Final = re.compile(r"[\w./-]+\.(?:py|sh)\b")
GOES: Final = re.compile(r"\bcd\s|\bpushd\s|\s-m\s|\.sh\b")  # to another folder, to a module, to more lines


def joins_group(argv: Sequence[str], cwd: str) -> str:
    """Whether it does: "yes" if its text may, "no" if it trains and joins none, "" if that cannot be said."""
    text = " ".join(argv)
    if JOINS.search(text):
        return YES
    argv = only(argv)
    if not (argv and PYTHON.search(Path(argv[0]).name)):
        return YES if _named_in(text, Path(cwd), 2) or _joins_below(text, Path(cwd)) else UNSEEN
    if "-c" in argv:
        after = argv.index("-c") + 1
        return _look_through([(argv[after] if after < len(argv) else "", Path(cwd))], Path(cwd))
    script = script_of(argv, cwd)
    source = None if script is None else _text_of(script)
    if script is None or source is None:
        return UNSEEN
    return _look_through([(source, script.parent)], Path(cwd) if "-m" in argv else script.parent)


def _named_in(text: str, folder: Path, deep: int) -> bool:
    """Whether a script that a line for a shell names may join a group; more than yes cannot be said of such a line."""
    for word in NAMED.findall(text) if deep else ():
        path = folder / word
        source = _text_of(path)
        if source is None:
            continue
        if path.suffix == ".py" and _look_through([(source, path.parent)], path.parent) == YES:
            return True
        if path.suffix == ".sh" and (JOINS.search(source) or _named_in(source, folder, deep - 1)):
            return True
    return False


def _joins_below(text: str, folder: Path) -> bool:
    """Whether any script in the folder may join a group, for a line that leaves it, or runs a module or more lines."""
    if not GOES.search(text):
        return False
    looked = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not (name.startswith(".") or name in ENVIRONMENTS)]
        scripts = [Path(place, name) for name in names if name.endswith((".py", ".sh"))]
        looked += 1 + len(scripts)
        if looked > MOST_FILES:
            return False
        if any(JOINS.search(_text_of(path) or "") for path in scripts):
            return True
    return False


def _look_through(texts: list[tuple[str, Path]], root: Path) -> str:
    """Each text with the folder of its file, and what they import from below `root`."""
    found, seen, learns = NO, set[Path](), False
    while texts:
        source, folder = texts.pop()
        learns = learns or LEARNS.search(source) is not None
        if JOINS.search(source):
            return YES
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            found = UNSEEN  # the script will say so itself, to its own log
            continue
        if HIDES.search(source):
            found = UNSEEN
        for library, paths in _imported(tree, folder, root):
            files = [path for path in paths if path.is_file()]
            if not files and not (library in sys.stdlib_module_names or PLAIN.fullmatch(library)):
                found = UNSEEN
            for path in files:
                if path in seen:
                    continue
                seen.add(path)
                text = _text_of(path) if len(seen) <= MOST_FILES else None
                if text is None:
                    found = UNSEEN
                else:
                    texts.append((text, path.parent))
    return found if learns else UNSEEN


def _imported(tree: ast.AST, folder: Path, root: Path) -> Iterator[tuple[str, list[Path]]]:
    """For each import: the library that it would be ("" = none), and the files here that it would be first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], _files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            base, library = root, "".join(parts[:1])
            if node.level:
                base, library = [folder, *folder.parents][min(node.level - 1, len(folder.parents))], ""
            modules = [path for alias in node.names for path in _files(base, [*parts, alias.name])[-2:]]
            yield library, [*([base / "__init__.py"] if node.level else []), *_files(base, parts), *modules]


def _files(base: Path, parts: Sequence[str]) -> list[Path]:
    """Files of the module, and of all packages that it is in."""
    found = []
    for number in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:number])
        found += [place.with_name(f"{place.name}.py"), place / "__init__.py"]
    return found


def _text_of(path: Path) -> str | None:
    try:
        if path.is_file() and path.stat().st_size <= SCRIPT_BYTES:
            return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        pass
    return None
