"""`python -m sublet.runtime.agent`: the agent of a machine that a cloud has started for us."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from sublet.runtime.agent.agent import FIRST_LEASE_S, AgentFacts
from sublet.runtime.agent.forking import begin
from sublet.runtime.agent.nursery import Nursery
from sublet.runtime.agent.serving import run


def main() -> None:
    """Read the options, become the leader of a session, serve."""
    parser = argparse.ArgumentParser(prog="python -m sublet.runtime.agent", description=__doc__)
    parser.add_argument("--node", required=True, help="the node's name at the controller")
    parser.add_argument("--address", required=True, help="unix:/path, tcp: or tls:host:port of the controller")
    parser.add_argument("--token-file", required=True, type=Path, help="file with the node's token")
    parser.add_argument("--authority", type=Path, help="file with the certificate that a tls: controller is known by")
    parser.add_argument("--host", default="", help="where workers of other nodes reach this one, if not as it finds")
    parser.add_argument("--lease-s", type=float, default=FIRST_LEASE_S, help="how long to look for the controller")
    parser.add_argument("--preload", action="append", default=[], help="a module that workers begin with, as torch")
    parser.add_argument("--metadata", default="", help="where EC2 tells of interruptions, as http://169.254.169.254")
    parser.add_argument("--own-users", action="store_true", help="as root: each job's workers as a user of their own")
    parser.add_argument("--lease-file", default="", help="a file to touch whenever the lease is renewed")
    options = parser.parse_args()
    _lead_a_session()
    nursery = Nursery(begin, options.preload)  # before the token is read
    run(
        AgentFacts(
            node_id=options.node,
            token=options.token_file.read_text(encoding="utf-8").strip(),
            address=options.address,
            notice_file=str(options.token_file.with_name(f"{options.node}.notice").resolve()),
            authority=options.authority.read_text(encoding="utf-8") if options.authority else "",
            host=options.host,
            lease_s=options.lease_s,
            metadata_url=options.metadata,
            lease_file=options.lease_file and str(Path(options.lease_file).resolve()),
        ),
        nursery,
        own_users=options.own_users and not os.geteuid(),
    )


def _lead_a_session() -> None:
    """All that this node starts is found by its session; a process that leads a group needs a fork to get one."""
    if os.getsid(0) == os.getpid():
        return
    if os.getpgid(0) == os.getpid() and os.fork():
        os._exit(0)
    os.setsid()


if __name__ == "__main__":
    main()
