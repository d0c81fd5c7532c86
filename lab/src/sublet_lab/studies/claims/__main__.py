"""`make claims`: run the studies that the README's tables rest on, and write the tables.

python -m sublet_lab.studies.claims            all of them, in full, two at a time: an hour and a half on two cores
python -m sublet_lab.studies.claims --quick    smaller runs: minutes; what is written says so
python -m sublet_lab.studies.claims --only boa,fleet
python -m sublet_lab.studies.claims --render   nothing is run: the tables from the file of the last runs
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sublet_lab.studies.claims.catalogue import CLAIMS
from sublet_lab.studies.claims.results import Result, read_results, write_results
from sublet_lab.studies.claims.run import commit_of, run_all
from sublet_lab.studies.claims.table import not_shown, table, with_table

MARK = "claims"


def main(arguments: list[str]) -> int:
    """The exit code: 1 where a claim is shown by no check; one that is missed is marked, and no error."""
    parser = argparse.ArgumentParser(prog="python -m sublet_lab.studies.claims", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--only", default="", help="studies, by comma")
    parser.add_argument("--root", type=Path, default=Path())
    asked = parser.parse_args(arguments)
    file, page = asked.root / "docs" / "claims.json", asked.root / "README.md"
    results: dict[str, Result] = read_results(file) if file.exists() else {}
    if not asked.render:
        every = list(dict.fromkeys(claim.study for claim in CLAIMS))
        names = [name for name in asked.only.split(",") if name] or every
        for name, result in run_all(names, quick=asked.quick, commit=commit_of(asked.root)):
            results[name] = result
            write_results(file, results)
    page.write_text(with_table(page.read_text(encoding="utf-8"), MARK, table(CLAIMS, results)), encoding="utf-8")
    missing = not_shown(CLAIMS, results)
    for line in missing:
        print(line, file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
