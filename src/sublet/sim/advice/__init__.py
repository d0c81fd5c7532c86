"""The spread of results of an advised cluster, replayed over real traces."""
