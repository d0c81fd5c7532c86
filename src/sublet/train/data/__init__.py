"""Samples: in what order they come, and which of them are whose."""
