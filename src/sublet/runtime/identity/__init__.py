"""Identities on a line that leaves the machine: an authority of our own, and certificates for one node each."""
