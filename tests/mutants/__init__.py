"""Faults planted in the logic that decides and bills: which of them do the tests see? `make mutants`."""
