"""Engines: how messages reach the agents of nodes, all behind `Engine`."""
