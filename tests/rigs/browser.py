"""What a browser would refuse to do with a page, by the Content-Security-Policy that the page states."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser


def refused(page):
    """All that the page asks for and its policy does not allow; a page without a strict one is refused as a whole."""
    reader = _Browser()
    reader.feed(page)
    return reader.refused if reader.policy else ["the page: it states no policy"]


class _Browser(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.policy, self.refused, self._within = {}, [], ""

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        if tag == "meta" and facts.get("http-equiv", "").lower() == "content-security-policy":
            parts = [part.split() for part in facts["content"].split(";") if part.strip()]
            self.policy = {name: sources for name, *sources in parts}
            if self.policy.get("default-src") != ["'none'"] or "unsafe-inline" in facts["content"]:
                self.refused.append(f"the page: its policy is wide open: {facts['content']}")
        if tag in ("style", "script"):
            self._within = tag
            if "src" in facts:
                self.refused.append(f"a script from {facts['src']}")
        if tag in ("link", "iframe", "object", "embed", "base", "form"):
            self.refused.append(f"<{tag}>")
        if tag == "img" and not (facts["src"].startswith("data:") and self.policy.get("img-src") == ["data:"]):
            self.refused.append(f"a picture from {facts['src'][:40]}")
        self.refused += [f"{name} of <{tag}>" for name in facts if name.startswith("on") or name == "style"]
        self.refused += [f"{facts['href']}" for _ in [0] if facts.get("href", "").startswith(("javascript:", "http"))]

    def handle_data(self, text):
        if self._within:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            if f"'sha256-{digest}'" not in self.policy.get(f"{self._within}-src", ()):
                self.refused.append(f"<{self._within}>{text[:40]}")

    def handle_endtag(self, tag):
        if tag == self._within:
            self._within = ""
