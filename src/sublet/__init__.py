"""Sublet rents GPUs from a cloud and sublets them to training jobs, within a budget."""

__version__ = "0.1.0"
