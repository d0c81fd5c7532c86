"""Nodes of a Ray cluster that somebody else runs."""
