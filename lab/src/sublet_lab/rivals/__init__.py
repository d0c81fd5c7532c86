"""Policies that ours are compared with: those of published systems, and simple ones."""
