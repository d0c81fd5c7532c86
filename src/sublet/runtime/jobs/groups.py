"""Whether the workers of a script without a session join one another: by its text and that of the modules beside it.

The text is searched for the words by which groups are joined. If there are none, a model is trained, and nothing is
run that cannot be read, each of several workers would train a copy of its own. Otherwise nothing is said.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from sublet.runtime.jobs.command import PYTHON, SCRIPT_BYTES, only, script_of

__all__ = ["joins_group"]

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
