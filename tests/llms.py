"""docs/llms.txt tells a language model what there is to read: `python -m tests.llms` writes it from the pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
FILE = DOCS / "llms.txt"
PARTS = {
    "tutorial": "Tutorial",
    "guides": "Guides",
    "reference": "Reference",
    "architecture": "Architecture",
    "background": "Background",
}
HEAD = """# Sublet

> Sublet rents GPUs from a cloud and sublets them to training jobs, within a budget: it decides at every moment how many
> to rent, of which kind, spot or on demand, which job gets how many, and moves jobs out of the way of preemptions. The
> command is `sublet`, with `--json` for programs; a running controller answers over HTTP (`/v1/openapi.json`) and in
> Python (`sublet.client`).
"""


def text() -> str:
    """The whole file."""
    parts = [HEAD]
    for folder, title in PARTS.items():
        lines = [
            f"- [{_title(page)}]({page.relative_to(DOCS)}): {_gist(page)}"
            for page in sorted((DOCS / folder).glob("*.md"))
        ]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def _gist(page: Path) -> str:
    """The first sentence that is one."""
    body = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in body.split("\n\n")[1:]:
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
        if words and words[0] not in "#|!-:<`":
            return re.split(r"(?<=[.:;])\s", words)[0].rstrip(":;")
    return ""


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}: {len(text().splitlines())} lines\n")
