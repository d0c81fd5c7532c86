"""A browser, a controller, and pages of it."""

from __future__ import annotations

import pytest

from tests.rigs.console import browser, fleet


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def there(chromium, tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("console")) as found:
        yield found


@pytest.fixture
def open_page(chromium, there):
    """A page of a fresh browser; with `link`, let in by it. What the page complains of fails the test."""
    contexts, complaints = [], []

    def opened(link=None, **facts):
        context = chromium.new_context(**facts)
        context.set_default_timeout(120_000)  # milliseconds
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"it called {dialog.type}"))
        page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
        page.goto(link or there.link())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
