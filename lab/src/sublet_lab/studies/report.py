"""A study on paper: JSON for programs, and a folder with one page, its pictures and its tables for people."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from sublet import __version__
from sublet.sim.report.folder import prepare_folder, write_all
from sublet.sim.report.html import document, figure, listing, table
from sublet_lab.studies.study import Check, Findings, Study, StudyTable

__all__ = ["Report", "prepare_folder"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A study, what it found, how long that took, and the command that repeats it."""

    study: Study
    findings: Findings
    seconds: float
    command: str

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(check.ok for check in self.findings.checks)

    def json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "study": self.study.name,
            "seconds": round(self.seconds, 3),
            "command": self.command,
            "checks": [_json_from_check(check) for check in self.findings.checks],
            "tables": [_json_from_table(each) for each in self.findings.tables],
            "notes": list(self.findings.notes),
        }

    def table(self) -> StudyTable:
        """The checks, as a table."""
        rows = [
            [
                check.name,
                "-" if check.published is None else _number(check.published),
                "-" if check.prototype is None else _number(check.prototype),
                _number(check.ours) if math.isnan(check.off) else f"{_number(check.ours)} +- {check.off:.2g}",
                check.goal,
                check.unit,
                "ok" if check.ok else "MISSED",
            ]
            for check in self.findings.checks
        ]
        columns = ["check", "published", "prototype", "ours", "goal", "unit", ""]
        return StudyTable(title="Checks", columns=columns, rows=rows)

    def write(self, folder: Path) -> Path:
        """All of it; the path of the page."""
        files = {"study.json": (json.dumps(self.json(), indent=2, allow_nan=False) + "\n").encode()}
        for each in self.findings.tables:
            files[f"{_slug(each.title)}.csv"] = _csv(each).encode()
        for caption, png in self.findings.plots.items():
            files[f"{_slug(caption)}.png"] = png
        files["study.html"] = self._page().encode()
        write_all(folder, files)
        return folder / "study.html"

    def _page(self) -> str:
        missed = sum(not check.ok for check in self.findings.checks)
        verdict = "every check held" if not missed else f"{missed} of {len(self.findings.checks)} checks missed"
        tables: Sequence[StudyTable] = [self.table(), *self.findings.tables]
        parts = [f'<p class="lead">{escape(self.study.title)}: {verdict}.</p>']
        parts += [f"<h2>{escape(of.title)}</h2>{table(of.columns, of.rows, texts=of.texts)}" for of in tables]
        parts += [figure(caption, png) for caption, png in self.findings.plots.items()]
        if self.findings.notes:
            parts.append(f"<h2>Notes</h2>{listing(self.findings.notes)}")
        parts.append(f"<h2>Do it again</h2><pre>{escape(self.command)}</pre>")
        parts.append(f"<footer>Sublet {escape(__version__)}, {self.seconds:.0f} s.</footer>")
        return document(f"Study: {self.study.name}", "\n".join(parts))


def _json_from_check(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "published": check.published,
        "prototype": check.prototype,
        "ours": check.ours if math.isfinite(check.ours) else None,
        "off": check.off if math.isfinite(check.off) else None,
        "goal": check.goal,
        "ok": check.ok,
        "unit": check.unit,
    }


def _json_from_table(of: StudyTable) -> dict[str, Any]:
    return {"title": of.title, "columns": list(of.columns), "rows": [list(row) for row in of.rows]}


def _csv(of: StudyTable) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(of.columns)
    writer.writerows(of.rows)
    return text.getvalue()


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.4g}"
