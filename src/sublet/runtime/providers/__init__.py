"""Providers: one file per cloud, all behind `Provider`."""
