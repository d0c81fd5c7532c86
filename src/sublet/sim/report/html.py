"""The pieces of a self-contained page: its frame, tables and pictures. All text that comes in is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape


def document(title: str, body: str, *, script: str = "") -> str:
    """A whole page around `body`. A browser runs `script` and nothing else, and loads nothing from anywhere."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_content_policy(STYLE, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{body}
</main>
{f"<script>{script}</script>" if script else ""}
</body>
</html>
"""


def _content_policy(style: str, script: str) -> str:
    """The content policy of the page, should text that came in ever be taken for more than text."""
    scripts = f"script-src {_digest(script)}; " if script else ""
    return (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; {scripts}base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def listing(lines: Sequence[str]) -> str:
    """A list with a dot before each line."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int, sortable: bool = False) -> str:
    """The first `texts` columns are words, the others numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        parts = (
            f"<{tag}{'' if place < texts else ' class=n'}>{escape(cell)}</{tag}>" for place, cell in enumerate(cells)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    kind = " class=sortable" if sortable else ""
    return f"<div class=wide><table{kind}><thead>{line(titles, 'th')}</thead><tbody>\n{body}\n</tbody></table></div>"


def figure(caption: str, png: bytes) -> str:
    """A PNG file inside the page."""
    image = base64.b64encode(png).decode("ascii")
    text = escape(caption)
    return f'<figure><figcaption>{text}</figcaption><img alt="{text}" src="data:image/png;base64,{image}"></figure>\n'


STYLE = """
:root { --ink: #23272e; --soft: #616975; --line: #dfe3e8; --paper: #fff; --back: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --soft: #9aa3af; --line: #343a43; --paper: #1d2127; --back: #14171b; }
}
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.lead, footer { color: var(--soft); }
footer { margin-top: 2rem; font-size: .87rem; }
.wide { overflow-x: auto; background: var(--paper); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .8rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
th { font-weight: 600; font-size: .87rem; color: var(--soft); }
.n { text-align: right; }
.sortable th { cursor: pointer; user-select: none; }
.sortable td { padding: .2rem .8rem; font-size: .87rem; }
figure { margin: 1.6rem 0; padding: .8rem; background: #fff; border: 1px solid var(--line); border-radius: 8px; }
figcaption { color: #23272e; font-weight: 600; margin: 0 0 .5rem .2rem; }
img { width: 100%; height: auto; display: block; }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: .8rem; overflow-x: auto; }
a { color: inherit; }
"""
