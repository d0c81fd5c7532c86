"""Hosts that share nothing, on one machine: what the instances of a moto server would be, if they were machines.

    hypervisor   the box: every instance becomes a host, and what a test does to it
    claim        one number for each box, and what earlier ones left behind
    network      a bridge, an address for each host, cables that are pulled and lines that are slow
    machine      one host: namespaces, a filesystem of its own, pid 1
    image        what all hosts are started from, read-only
    metadata     what an instance can ask about itself (IMDSv2)
    cloud        the moto server: EC2 and S3
    sshd         a host's ssh server, where its image has one

Needs root, `ip`, `unshare`, and the extra `box`; docs/guides/hosts-that-share-nothing.md says what is real about it.
"""
