"""Which of SkyPilot's own job files Sublet takes as they are: `python -m sublet.studies.skypilot CLONE`.

CLONE is a checkout of https://github.com/skypilot-org/skypilot. Every file below `examples` and `llm` that holds a
command and serves nothing is read by the code of `sublet submit`. A variable that a file leaves open is given one;
paths that its author has and this machine has not are counted twice: as they are, and supposed to be there.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sublet.errors import BadInput, SubletError
from sublet.runtime.jobs.file import job_from_file
from sublet.runtime.jobs.mounts import Places

__all__ = ["GOAL", "Verdict", "main", "survey", "task_files"]

FOLDERS = ("examples", "llm")
GOAL = 0.85  # of the files, with the paths of their authors supposed to be there
REASON = re.compile(r"(?P<key>[\w.]+?)(?:\.?[~/$].*?)? = .* is not allowed; it must be (?P<why>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of one file."""

    file: str
    taken: bool  # by the rules for files
    here: bool  # so it is on this machine, without what only its author has
    notes: tuple[str, ...] = ()
    contained: bool = False  # it runs in a container, which no daemon here has tried
    keeps: bool = False  # it writes into a bucket
    why: str = ""


class _Given(Mapping[str, str]):
    """A variable that is asked for has a value, whatever its name."""

    def __getitem__(self, name: str) -> str:
        return f"given-{name.lower()}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def task_files(clone: Path) -> Iterator[Path]:
    """Files with a command, of which none serves."""
    import yaml

    for path in sorted(path for folder in FOLDERS for path in (clone / folder).rglob("*.y*ml")):
        try:
            held = [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if isinstance(each, Mapping)]
        except (yaml.YAMLError, UnicodeDecodeError):
            continue  # a template, or no YAML at all
        if any("run" in each for each in held) and not any("service" in each for each in held):
            yield path


def survey(clone: Path) -> list[Verdict]:
    """A verdict for each of its job files."""
    files = list(task_files(clone)) if all((clone / folder).is_dir() for folder in FOLDERS) else []
    if not files:
        hint = "git clone https://github.com/skypilot-org/skypilot"
        raise BadInput(clone, "it is no clone of SkyPilot: it has no job files in examples and llm", hint=hint)
    return [_judge(path, clone.resolve()) for path in files]


def _judge(path: Path, clone: Path) -> Verdict:
    def supposed(place: Path) -> bool:
        return place.exists() or not place.is_relative_to(clone)

    name, bases = str(path.resolve().relative_to(clone)), (path.resolve().parent, clone)
    try:
        spec = job_from_file(path, environment=_Given(), places=Places(bases, supposed))
    except SubletError as error:
        return Verdict(file=name, taken=False, here=False, why=_reason(str(error).splitlines()[0]))
    try:
        job_from_file(path, environment=_Given(), places=Places(bases))
        here = True
    except SubletError:
        here = False
    return Verdict(
        file=name, taken=True, here=here, notes=spec.notes, contained=bool(spec.image), keeps=bool(spec.kept_mounts)
    )


def _reason(line: str) -> str:
    """Without what is of this file alone."""
    text = re.sub(r"^.*?(, line \d+)?: ", "", line, count=1)
    if found := REASON.fullmatch(text):
        return f"{found['key']}: not {found['why']}".partition("; ")[0]
    return re.sub(r"\d+ jobs", "several jobs", text)


def _print(verdicts: Sequence[Verdict]) -> None:
    count = len(verdicts)
    taken, here = [each for each in verdicts if each.taken], sum(each.here for each in verdicts)
    print(f"{count} job files with a command that serve nothing")
    print(
        f"{len(taken):5} taken ({len(taken) / count:.1%}) by the rules for files, paths of their authors supposed there"
    )
    print(f"{here:5} taken ({here / count:.1%}) as this machine is")
    boxed, keep = sum(each.contained for each in taken), sum(each.keeps for each in taken)
    print(f"{keep:5} of the first write into a bucket, {boxed} run in a container: by the node's docker or podman, of")
    print(f"{'':5} which Sublet's tests have no daemon, only docker's client and a program in the daemon's place")
    print(f"\nrefused{'':53} files  one of them")
    first: dict[str, str] = {}
    for each in verdicts:
        if not each.taken:
            first.setdefault(each.why, each.file)
    for why, files in Counter(each.why for each in verdicts if not each.taken).most_common():
        print(f"{why[:58]:60} {files:4}  {first[why]}")
    print(f"\nnoted{'':55} files")
    noted = Counter(key for each in taken for key in {_key(note) for note in each.notes})
    for key, files in noted.most_common():
        print(f"{key:60} {files:4}")


def _key(note: str) -> str:
    """Of which a note is, without its value and its place among choices."""
    return re.sub(r"\.any_of\.\d+", "", re.split(r" = |: |[./~$]*/", note, maxsplit=1)[0]).rstrip(".")


def main(arguments: Sequence[str]) -> int:
    """Print the table, or with --json every verdict; 0 if the goal is met."""
    folders = [each for each in arguments if each != "--json"]
    if len(folders) != 1:
        print("usage: python -m sublet.studies.skypilot CLONE [--json]", file=sys.stderr)
        return 2
    try:
        verdicts = survey(Path(folders[0]).expanduser())
    except SubletError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if "--json" in arguments:
        print(json.dumps({"schema_version": 1, "files": [asdict(each) for each in verdicts]}, indent=1))
    else:
        _print(verdicts)
    return 0 if sum(each.taken for each in verdicts) >= GOAL * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
