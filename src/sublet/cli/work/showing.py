"""A history that is over, in the page: what `simulate --serve` and `replay --serve` share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sublet.domain.actions import Action
    from sublet.domain.events import Event
    from sublet.kernel.kernel import Kernel
    from sublet.runtime.controller.watch import Chronicle
    from sublet.runtime.store import Store


class Shown:
    """Writes down what people are told of a simulation, as a controller does."""

    def __init__(self, store: Store, chronicle: Chronicle) -> None:
        self.store, self._chronicle = store, chronicle
        self.kernel: Kernel | None = None

    def note(self, event: Event, actions: list[Action], kernel: Kernel) -> None:
        """One event and the orders that followed."""
        self.kernel = kernel
        self._chronicle.tell(event, actions, kernel)
        self._chronicle.write(kernel, event.at_s)


@contextmanager
def telling() -> Iterator[Shown]:
    """A place for it, until the block ends."""
    from sublet import plugins
    from sublet.runtime.controller.watch import Chronicle
    from sublet.runtime.store import Store

    plugins.refuse_without("server", *plugins.SERVER)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "log.sqlite")
        try:
            with store.transaction():
                yield Shown(store, Chronicle(store, lambda _: True, lambda _: ""))
        finally:
            store.close()


def show(store: Store, *, what: str, policy: str = "", kernel: Kernel | None = None) -> None:
    """In the page, until Ctrl-C."""
    from sublet.api.recorded import serve_recorded

    def tell(link: str) -> None:
        typer.echo(f"{link}\nopens the page once, within a minute; Ctrl-C ends it")

    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        serve_recorded(store, Path(folder) / "state", tell, what=what, policy=policy, kernel=kernel)
