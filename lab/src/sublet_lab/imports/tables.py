"""Step times and gradient noise as Pollux and Sia publish them: a folder per model, a file per table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sublet.errors import BadInput
from sublet_lab.imports.artifact import lines_of

MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
TASKS = {  # in our words: the artifact names the models alone
    "bert": '"BERT fine-tuning, SQuAD"',
    "cifar10": '"ResNet-18, CIFAR-10"',
    "deepspeech2": '"DeepSpeech2, CMU-ARCTIC"',
    "imagenet": '"ResNet-50, ImageNet"',
    "ncf": '"NeuMF, MovieLens"',
    "yolov3": '"YOLOv3, PASCAL-VOC"',
    "gpt_pmp": '"2.8B GPT, pipeline + data parallel (efficiency curves copied from bert by Sia)"',
}
NOISE = ("metric", "grad_sqr", "grad_var")
Number = Callable[[float], str]
exact: Number = repr


def rounded(value: float) -> str:
    """To six digits.

    >>> rounded(0.45532354712486267), rounded(195590723287826.75)
    ('0.455324', '195591000000000.0')
    """
    return repr(float(f"{value:.6g}"))


def step_rows(folder: Path, suffix: str = "") -> Iterator[tuple[str, str, str, int, str, float, float]]:
    """Rows of one model and cluster: table, placement, nodes, GPUs, local batch, step and sync time."""
    for table, where in (("placements", ("placement",)), ("scalability", ("num_nodes", "num_replicas"))):
        path = folder / f"{table}{suffix}.csv"
        for row in lines_of(path, (), numbers=("step_time", "sync_time"), counts=("local_bsz", *where)):
            placement = row.get("placement", "")
            nodes = str(len(placement)) if placement else row["num_nodes"]
            gpus = sum(map(int, placement)) if placement else int(row["num_replicas"])
            yield table, placement, nodes, gpus, row["local_bsz"], float(row["step_time"]), float(row["sync_time"])


def efficiency_rows(folder: Path, model: str, number: Number, digits: int = 17) -> Iterator[list[str]]:
    """Rows of one model: one per epoch of each batch size, the smallest first; progress to so many digits."""
    for batch, path in _validations(folder):
        for epoch, row in enumerate(lines_of(path, ("iteration",), numbers=("progress", *NOISE))):
            noise = (number(float(row[name])) for name in NOISE)
            yield [
                model,
                str(batch),
                str(epoch),
                repr(float(f"{float(row['progress']):.{digits}g}")),
                row["iteration"],
                *noise,
            ]


def models_csv(folder: Path, models: Sequence[str], local: Mapping[str, tuple[int, int]]) -> str:
    """Batches and epochs of each model, as the names and lengths of its tables state them."""
    lines = ["model,task,init_batch_size,max_batch_size,epochs,min_local_bsz,max_local_bsz"]
    for model in models:
        batches = _validations(folder / model)
        epochs = len(lines_of(batches[0][1], ("iteration",)))
        fields = (model, TASKS[model], batches[0][0], batches[-1][0], epochs, *local[model])
        lines.append(",".join(map(str, fields)))
    return "\n".join(lines) + "\n"


def _validations(folder: Path) -> list[tuple[int, Path]]:
    found = sorted((int(path.stem.partition("-")[2]), path) for path in folder.glob("validation-[0-9]*.csv"))
    if not found:
        raise BadInput(folder, "no validation-*.csv in it", hint="give the folder of the whole clone")
    return found
