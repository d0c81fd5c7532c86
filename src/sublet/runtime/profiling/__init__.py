"""How a script scales, measured in real workers before money is spent."""
