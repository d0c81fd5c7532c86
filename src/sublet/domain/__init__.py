"""What things are: frozen values that cannot hold nonsense."""
