"""How dear: what can be rented, what it costs, how long it lasts."""
