"""Profiles of jobs: measured while they train, kept in files for the next run."""
