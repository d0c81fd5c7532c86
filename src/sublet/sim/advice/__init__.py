"""What may become of an advised cluster, replayed over real traces."""
