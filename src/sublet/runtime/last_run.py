"""The settings of the last run of a state directory: a start without flags goes on with them, a flag changes one thing.

Budgets as they were changed at run time count, not as they were once started with. Settings that nodes depend on cannot
change under them; `--fresh` begins anew beside what there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sublet import plugins
from sublet.domain.budget import Budget
from sublet.errors import BadInput
from sublet.kernel.values_json import from_plain
from sublet.machine.wall import WALL
from sublet.runtime.private import home_of
from sublet.runtime.settings import Settings, settings_from_json
from sublet.runtime.store import MetaKey, Store

FIXED = ("provider", "engine", "speedup", "slots_per_node", "mix_markets")  # as long as nodes are rented
LABELS = {
    "burn_usd_per_h": "budget",
    "average_usd_per_h": "average",
    "purse_usd": "purse",
    "most_nodes": "nodes",
    "slots_per_node": "slots",
    "mix_markets": "mixed markets",
    "decide_limit_s": "decide limit",
    "notice_s": "notice",
    "boot_s": "boot",
}
BUDGET = ("burn_usd_per_h", "average_usd_per_h", "purse_usd")
ENDS = frozenset({"NodeLost", "NodeReleased", "RentRefused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is another than it was."""

    field: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{LABELS.get(self.field, self.field)}: {self.old} -> {self.new}"


def last_settings(state_dir: Path) -> Settings | None:
    """With the budget that is in force; None where no controller ever ran, or its settings are lost.

    If their file is, as in a backup of the log alone, those count that the log has.
    """
    file, log = state_dir / "settings.json", state_dir / "log.sqlite"
    if not log.is_file():
        return None
    store = Store(log)
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else store.get(MetaKey.SETTINGS)
        if text is None or not store.last_seq():
            return None
        settings = settings_from_json(text, source=file if file.is_file() else log)
        return with_budget_in_force(replace(settings, state_dir=str(state_dir)), store)
    finally:
        store.close()


def settings_of_log(state_dir: Path, chosen: Mapping[str, Any]) -> Settings | None:
    """Settings of a log without any, as of an old version; None where there is no log, or they are there.

    Budget and provider are what the log says; what it does not know is as chosen, or as at a first start.
    """
    log = state_dir / "log.sqlite"
    if (state_dir / "settings.json").is_file() or not log.is_file():
        return None
    store = Store(log)
    try:
        if not store.last_seq():
            return None
        if (provider := _provider_of(store) or chosen.get("provider")) is None:
            why = "settings.json is missing, and log.sqlite does not name the provider"
            raise BadInput(state_dir, why, hint="restore settings.json beside it; or sublet up --provider NAME")
        if _budget_in_force(store) is None and not chosen.keys() & set(BUDGET):
            why = "settings.json is missing, and log.sqlite does not say what may be spent"
            raise BadInput(state_dir, why, hint="restore settings.json beside it; or sublet up --budget USD/H")
        engine = provider if provider in plugins.names("sublet.engines") else "local"
        known = {"state_dir": str(state_dir), "provider": provider}
        return with_budget_in_force(Settings(**{"engine": engine, **chosen, **known}), store)
    finally:
        store.close()


def _provider_of(store: Store) -> str | None:
    """By the cloud of what could be rented last, if a provider is called so."""
    offers = json.loads(store.get(MetaKey.HEADER) or "{}").get("offers", [])
    after = 0
    for seq, text in store.snapshots()[:1]:
        after, supply = seq, json.loads(text)["kernel"]["supply"]
        offers = [offer for offer in supply["offers"] if offer["id"] not in supply["withdrawn"]]
    for line in store.lines(after=after):
        facts = json.loads(line)["event"]
        if facts["type"] == "OffersChanged":
            offers = facts["offers"]
    clouds = {offer.get("cloud", "") for offer in offers}
    return clouds.pop() if len(clouds) == 1 and clouds <= set(plugins.names("sublet.providers")) else None


def show_budget(settings: Settings) -> str:
    """Its limits in words."""
    limits = [name for name in BUDGET if getattr(settings, name) is not None]
    return ", ".join(f"{LABELS[name]} {_show(name, getattr(settings, name))}" for name in limits) or "no limit"


def with_budget_in_force(settings: Settings, store: Store) -> Settings:
    """As it was changed at run time, where anything was ever noted of it."""
    budget = _budget_in_force(store)
    if budget is None:
        return settings
    return replace(
        settings,
        burn_usd_per_h=None if budget.burn is None else budget.burn.usd_per_h,
        average_usd_per_h=None if budget.average is None else budget.average.usd_per_h,
        purse_usd=None if budget.purse is None else budget.purse.usd,
    )


def _budget_in_force(store: Store) -> Budget | None:
    if (text := store.get(MetaKey.BUDGET_IN_FORCE)) is not None:
        return _budget_from(json.loads(text))
    found = None
    for line in store.lines():  # of a version that did not note it
        facts = json.loads(line)["event"]
        if facts["type"] == "BudgetChanged":
            found = facts["budget"]
    return None if found is None else _budget_from(found)


def _budget_from(facts: Any) -> Budget:
    budget: Budget = from_plain(Budget, facts)
    return budget


def reset_budget(state_dir: Path) -> None:
    """The budget of the settings counts at the next start, also where it is the one that was once begun with."""
    store = Store(state_dir / "log.sqlite")
    store.put(MetaKey.BUDGET, "")
    store.close()


def mark_moved(state_dir: Path) -> None:
    """Its owner says that it was moved: the next start here takes over what was rented at another place."""
    store = Store(state_dir / "log.sqlite")
    store.put(MetaKey.MOVED_TO, home_of(state_dir))
    store.close()


def take_moved_mark(store: Store, state_dir: Path) -> bool:
    """Whether its owner said of this place that it was moved here: true once, and then forgotten."""
    moved = store.get(MetaKey.MOVED_TO) == home_of(state_dir)
    store.put(MetaKey.MOVED_TO, "")
    return moved


def list_changes(old: Settings, new: Settings) -> list[Change]:
    """The differences, in words."""
    return [
        Change(field=each.name, old=_show(each.name, before), new=_show(each.name, after))
        for each in fields(Settings)
        if (before := getattr(old, each.name)) != (after := getattr(new, each.name)) and each.name != "state_dir"
    ]


def _show(name: str, value: Any) -> str:
    if value is None or value == ():
        return "no limit" if name.endswith(("usd_per_h", "_usd")) or name == "most_nodes" else "none"
    if name.endswith("usd_per_h"):
        return f"USD {value:.2f}/h"
    if name.endswith("_usd"):
        return f"USD {value:.2f}"
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:g} s" if name.endswith("_s") else f"{value}"


def refuse_while_rented(state_dir: Path, changed: list[Change]) -> None:
    """Settings that rented nodes depend on stay as they are until the nodes are given back."""
    fixed = [change for change in changed if change.field in FIXED]
    if not fixed:
        return
    rented = rented_nodes(state_dir)
    if rented:
        why = f"{fixed[0]} cannot be while nodes are rented ({', '.join(rented)})"
        hint = "'sublet up' as before, then 'sublet down' gives them back; after that change it, or use --fresh"
        raise BadInput(state_dir, why, hint=hint)


def rented_nodes(state_dir: Path) -> list[str]:
    """Those that no controller has heard the end of."""
    if not (state_dir / "log.sqlite").is_file():
        return []
    store = Store(state_dir / "log.sqlite")
    try:
        nodes: dict[str, None] = {}
        after = 0
        for seq, text in store.snapshots()[:1]:
            after, kernel = seq, json.loads(text)["kernel"]
            nodes = dict.fromkeys(node[0] for node in kernel["supply"]["cluster"]["nodes"])
        for line in store.lines(after=after):
            facts = json.loads(line)
            if facts["event"]["type"] in ENDS:
                nodes.pop(facts["event"]["node_id"], None)
            nodes |= dict.fromkeys(each["node_id"] for each in facts["actions"] if each["type"] == "RentNode")
        return list(nodes)
    finally:
        store.close()


def move_aside(state_dir: Path) -> Path | None:
    """Move all that there is out of the way, for a start anew; where it is now. None where there was nothing."""
    if not state_dir.is_dir() or not any(state_dir.iterdir()):
        return None
    if rented := rented_nodes(state_dir):
        why = f"nodes are rented ({', '.join(rented)}): a new beginning would forget them"
        raise BadInput(state_dir, why, hint="'sublet up', then 'sublet down' gives them back; then 'sublet up --fresh'")
    aside = state_dir.with_name(
        f"{state_dir.name}-before-{datetime.fromtimestamp(WALL.unix(), UTC).astimezone():%Y%m%dT%H%M%S}"
    )
    number = 1
    while aside.exists():
        number += 1
        aside = aside.with_name(f"{aside.name.partition('.')[0]}.{number}")
    try:
        state_dir.rename(aside)
    except OSError as error:
        why = f"cannot be moved aside ({error.strerror})"
        raise BadInput(state_dir, why, hint="choose another with SUBLET_STATE=/path") from None
    return aside
