"""Nodes of a Ray cluster that others run."""
