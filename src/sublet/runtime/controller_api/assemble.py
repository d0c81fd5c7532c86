"""From settings to a controller: provider, engine and policy by their names, over the store of a state directory.

A cloud that takes nodes by the progress of jobs is told how far they have come.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from sublet import plugins
from sublet.domain.budget import Budget
from sublet.domain.money import Money, Price
from sublet.domain.plan import Policy
from sublet.errors import BadInput
from sublet.policies.named import policy_named
from sublet.runtime.archive import refuse_lost_log
from sublet.runtime.controller.core import Controller
from sublet.runtime.controller.host import PACES, HostServices, Options
from sublet.runtime.controller.memory import JobsAtWork
from sublet.runtime.controller.money import clock_from
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_host.troubles import is_anchor
from sublet.runtime.engines.protocol import Engine, MakeEngine
from sublet.runtime.engines.server import TlsEngine, refuse_taken
from sublet.runtime.private import private_folder
from sublet.runtime.providers.protocol import Contains, FollowsJobs
from sublet.runtime.providers.setup import BuildProvider, ProviderSetup
from sublet.runtime.settings import Settings, settings_to_json
from sublet.runtime.store import Store


def controller_from(settings: Settings, policy: Policy | None = None) -> ControllerApi:
    """A controller that has not started yet; `policy` decides, or the one that the settings name."""
    build = _builder(settings.provider)
    make_engine = cast(MakeEngine, plugins.load("sublet.engines", settings.engine))
    state_dir = Path(settings.state_dir)
    _refuse_an_unwritable(state_dir)
    refuse_lost_log(state_dir)
    store = Store(state_dir / "log.sqlite")
    clock = clock_from(store, settings.speedup)
    setup = build(settings, clock, store)
    # Whoever claims the store ends the controller that has it: one that could not hear its agents does not begin.
    refuse_taken(setup.address, setup.port_field)
    options = Options(
        budget=budget_from(settings),
        limits=dict(setup.limits),
        rates=setup.rates,
        decide_limit_s=settings.decide_limit_s,
        settings=settings_to_json(settings),
        elsewhere=setup.elsewhere,
    )
    host = HostServices(state_dir=state_dir, clock=clock, paces=replace(PACES, silence_s=settings.silence_s))
    policy = policy or policy_from(settings)
    controller = Controller(store, setup.provider, _engine(make_engine, setup), policy, host=host, options=options)
    controller.sync.is_owners = not is_anchor(state_dir)
    if isinstance(setup.provider, Contains):
        controller.sync.no_containers = setup.provider.no_containers
    if isinstance(setup.provider, FollowsJobs):
        setup.provider.at_work = JobsAtWork(controller.table, lambda: controller.kernel)
    return ControllerApi(controller, settings, warm=setup.warm)


def _engine(make: MakeEngine, setup: ProviderSetup) -> Engine:
    """The one that the settings name; between machines, whatever it is, the one that asks for certificates."""
    if setup.authority is None:
        return make(setup.address, lease_s=setup.lease_s, port_field=setup.port_field)
    return TlsEngine(setup.address, authority=setup.authority, lease_s=setup.lease_s, port_field=setup.port_field)


def _builder(provider: str) -> BuildProvider:
    found = plugins.load("sublet.providers", provider)
    if isinstance(found, type):
        hint = "register build(settings, clock, store); for ours, install Sublet again: its entry points have moved"
        raise BadInput(f"entry point {provider}", f"is the class {found.__name__}, not a function", hint=hint)
    return cast(BuildProvider, found)


def _refuse_an_unwritable(state_dir: Path) -> None:
    try:
        private_folder(state_dir)
        probe = state_dir / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        hint = "choose another with SUBLET_STATE=/path, or make room"
        raise BadInput(state_dir, f"cannot be written ({error.strerror})", hint=hint) from error


def policy_from(settings: Settings) -> Policy:
    """The policy of this name, with its options; in a hurry or not."""
    return policy_named(settings.policy, hurry=settings.hurry)


def budget_from(settings: Settings) -> Budget:
    """The budget of the settings."""
    return Budget(
        burn=None if settings.burn_usd_per_h is None else Price.from_usd_per_h(settings.burn_usd_per_h),
        average=None if settings.average_usd_per_h is None else Price.from_usd_per_h(settings.average_usd_per_h),
        purse=None if settings.purse_usd is None else Money.from_usd(settings.purse_usd),
        besides=Price.from_usd_per_h(settings.besides_usd_per_h),
    )
