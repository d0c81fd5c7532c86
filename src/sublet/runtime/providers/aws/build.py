"""From settings and `aws.toml` to a provider on EC2; agents come over TLS, or to a port on loopback by a tunnel.

boto3 is imported when this is called, so that only this provider needs it.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from sublet.domain.budget import Limit
from sublet.errors import InvalidValue
from sublet.machine.rng import RNG, Rng
from sublet.market.catalogue import load_catalogue
from sublet.runtime.agent.dialing import is_secure
from sublet.runtime.clock import Clock
from sublet.runtime.identity.authority import Authority
from sublet.runtime.last_run import take_moved_mark
from sublet.runtime.providers.aws.calls import Calls, client_maker
from sublet.runtime.providers.aws.config import config_path, read_config
from sublet.runtime.providers.aws.offers import ask_prices, listed_prices, offers_from
from sublet.runtime.providers.aws.provider import AwsAccount, AwsProvider
from sublet.runtime.providers.pacing import Rate, Rates
from sublet.runtime.providers.setup import ProviderSetup, require_engine
from sublet.runtime.settings import Settings
from sublet.runtime.store import MetaKey, Store

_log = logging.getLogger(__name__)

# EC2 refills two launches and twenty questions a second, for all of an account in a region ("Request throttling for the
# Amazon EC2 API"). Half of the launches are ours: others of the account launch, too, and a rent asks questions besides.
RATES = Rates(rent=Rate(per_s=1.0, burst=3), release=Rate(per_s=2.5, burst=20), list=Rate(per_s=1.0, burst=5))


def build(settings: Settings, clock: Clock, store: Store) -> ProviderSetup:
    """As `aws.toml` says; MissingExtra without boto3."""
    require_engine(settings, "local")
    state_dir, server_id = Path(settings.state_dir), server_id_from(store)
    moved = take_moved_mark(store, state_dir)
    client_maker()  # that the extra is missing is said before that the file is
    config = read_config(config_path(state_dir))
    if not config.controller:
        raise InvalidValue(
            "aws.toml: controller", "", "tls:host:port that nodes reach this machine at; or 'sublet up --on aws'"
        )
    authority = Authority(state_dir / "identity", wall=clock.wall) if is_secure(config.controller) else None
    make = client_maker(config.endpoint_url)
    catalogue, today = load_catalogue(), datetime.fromtimestamp(clock.wall.unix(), UTC).date().isoformat()
    listed = listed_prices(config, catalogue)
    asked, notes = ask_prices(make, state_dir / "aws", listed, today)
    for note in notes:
        _log.warning("%s", note)
    days = [asked[place].day if place in asked else day for place, (_, day) in listed.items()]
    provider = AwsProvider(
        state_dir=state_dir,
        clock=clock,
        config=config,
        offers=offers_from(config, catalogue, mixed=settings.mix_markets, asked=asked),
        calls=Calls(make, wall=clock.wall, order_tries=1),
        account=AwsAccount(
            server_id=server_id,
            authority="" if authority is None else authority.certificate,
            moved=moved,
            priced_on=min(days, default=""),
        ),
    )
    most = settings.most_nodes
    return ProviderSetup(
        provider=provider,
        address=f"tcp:127.0.0.1:{config.agents_port}" if authority is None else f"tls:0.0.0.0:{config.agents_port}",
        authority=authority,
        lease_s=config.lease_s,
        port_field="aws.toml: agents_port",
        rates=RATES,
        elsewhere=True,
        limits={} if most is None else {offer.id: Limit(max_nodes=most) for offer in provider.offers},
    )


def server_id_from(store: Store, rng: Rng = RNG) -> str:
    """The server id of these instances; the same for the life of a state directory."""
    known = store.get(MetaKey.SERVER_ID)
    if known is None:
        known = rng.token(8)
        store.put(MetaKey.SERVER_ID, known)
    return known


def server_of(state_dir: Path) -> str:
    """The server id of this directory."""
    store = Store(state_dir / "log.sqlite")
    try:
        return server_id_from(store)
    finally:
        store.close()
