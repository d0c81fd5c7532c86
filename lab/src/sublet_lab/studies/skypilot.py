"""Which of SkyPilot's own job files Sublet takes as they are: `python -m sublet_lab.studies.skypilot CLONE`.

CLONE is a checkout of https://github.com/skypilot-org/skypilot. Every file below `examples` and `llm` that holds a
command and serves nothing is read by the code of `sublet submit`. A variable that a file leaves open is given one;
paths that its author has and this machine has not are counted twice: as they are, and supposed to be there. With
`--dry-run`, those that are taken are also brought to a controller (`dry_run`), and what it accepts is counted.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sublet.errors import BadInput, SubletError
from sublet.runtime.jobs.build import MountPlaces
from sublet.runtime.jobs.file import job_from_file
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.studies.dry_run import SIZES, dry_runs

FOLDERS = ("examples", "llm")
OPTIONS = ("--dry-run", "--json")
GOAL = 0.85  # of the files, with the paths of their authors supposed to be there
REASON = re.compile(r"(?P<key>[\w.]+?)(?:\.?[~/$].*?)? = .* is not allowed; it must be (?P<why>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result for one file."""

    file: str
    taken: bool  # by the rules for files
    here: bool  # so it is on this machine, without what only its author has
    notes: tuple[str, ...] = ()
    contained: bool = False  # it runs in a container, which no daemon here has tried
    keeps: bool = False  # it writes into a bucket
    why: str = ""
    accepted: bool | None = None  # by the dry run of a controller as well; None = none was asked
    accepted_here: bool | None = None  # so it is without what only its author has


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


def survey(clone: Path, *, dry_run: bool = False) -> list[Verdict]:
    """A verdict for each of its job files; with `dry_run`, a controller's too."""
    files = list(task_files(clone)) if all((clone / folder).is_dir() for folder in FOLDERS) else []
    if not files:
        hint = "git clone https://github.com/skypilot-org/skypilot"
        raise BadInput(clone, "it is no clone of SkyPilot: it has no job files in examples and llm", hint=hint)
    read = [_Read(path, clone.resolve()) for path in files]
    return _ask_controller(read) if dry_run else [each.verdict for each in read]


class _Read:
    """A file, read with the paths of its author supposed there, and as this machine is."""

    def __init__(self, path: Path, clone: Path) -> None:
        def supposed(place: Path) -> bool:
            return place.exists() or not place.is_relative_to(clone)

        bases = (path.resolve().parent, clone)
        self.spec, why = _spec(path, MountPlaces(bases, supposed))
        self.here, _ = _spec(path, MountPlaces(bases))
        self.verdict = Verdict(
            file=str(path.resolve().relative_to(clone)),
            taken=self.spec is not None,
            here=self.here is not None,
            notes=() if self.spec is None else self.spec.notes,
            contained=self.spec is not None and bool(self.spec.image),
            keeps=self.spec is not None and bool(self.spec.kept_mounts),
            why=why,
        )


def _spec(path: Path, places: MountPlaces) -> tuple[JobSpec | None, str]:
    try:
        return job_from_file(path, environment=_Given(), places=places), ""
    except SubletError as error:
        return None, _reason(str(error).splitlines()[0])


def _ask_controller(read: Sequence[_Read]) -> list[Verdict]:
    specs = [spec for each in read for spec in (each.spec, each.here) if spec is not None]
    asked = [spec for number, spec in enumerate(specs) if spec not in specs[:number]]  # most are the same on both
    answers = dry_runs(asked)
    found = []
    for each in read:
        why = each.verdict.why
        if each.spec is not None and (answer := answers[asked.index(each.spec)]):
            why = f"dry run: {_without_values(answer)}"
        accepted_here = each.here is not None and not answers[asked.index(each.here)]
        found.append(replace(each.verdict, why=why, accepted=not why, accepted_here=accepted_here))
    return found


def _reason(line: str) -> str:
    """Without what is of this file alone."""
    return _without_values(re.sub(r"^.*?(, line \d+)?: ", "", line, count=1))


def _without_values(text: str) -> str:
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
    if any(each.accepted is not None for each in verdicts):
        accepted, there = (
            sum(bool(each.accepted) for each in verdicts),
            sum(bool(each.accepted_here) for each in verdicts),
        )
        print(
            f"{accepted:5} accepted ({accepted / count:.1%}) by the dry run of a controller, such paths supposed there"
        )
        print(
            f"{there:5} accepted ({there / count:.1%}) by it as this machine is; it could rent every kind of GPU that"
        )
        print(
            f"{'':5} a file names, on nodes of {', '.join(map(str, SIZES))}, and asks for no bucket whether it is there"
        )
    boxed, keep = sum(each.contained for each in taken), sum(each.keeps for each in taken)
    print(f"{keep:5} of the first write into a bucket, {boxed} run in a container: by the node's docker or podman, of")
    print(f"{'':5} which Sublet's tests have no daemon, only docker's client and a program in the daemon's place")
    print(f"\nrefused{'':53} files  one of them")
    first: dict[str, str] = {}
    for each in verdicts:
        if each.why:
            first.setdefault(each.why, each.file)
    for why, files in Counter(each.why for each in verdicts if each.why).most_common():
        print(f"{why[:58]:60} {files:4}  {first[why]}")
    print(f"\nnoted{'':55} files")
    noted = Counter(key for each in taken for key in {_key(note) for note in each.notes})
    for key, files in noted.most_common():
        print(f"{key:60} {files:4}")


def _key(note: str) -> str:
    """The kind of a note, without its value and its place among choices."""
    return re.sub(r"\.any_of\.\d+", "", re.split(r" = |: |[./~$]*/", note, maxsplit=1)[0]).rstrip(".")


def main(arguments: Sequence[str]) -> int:
    """Print the table, or with --json every verdict; 0 if the goal is met, with --dry-run by what is accepted there."""
    folders = [each for each in arguments if each not in OPTIONS]
    if len(folders) != 1:
        print(
            f"usage: python -m sublet_lab.studies.skypilot CLONE {' '.join(f'[{each}]' for each in OPTIONS)}",
            file=sys.stderr,
        )
        return 2
    dry_run = "--dry-run" in arguments
    try:
        verdicts = survey(Path(folders[0]).expanduser(), dry_run=dry_run)
    except SubletError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if "--json" in arguments:
        print(json.dumps({"schema_version": 1, "files": [asdict(each) for each in verdicts]}, indent=1))
    else:
        _print(verdicts)
    good = sum(bool(each.accepted if dry_run else each.taken) for each in verdicts)
    return 0 if good >= GOAL * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
