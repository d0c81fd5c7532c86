"""Samples: their order, and their division among workers."""
