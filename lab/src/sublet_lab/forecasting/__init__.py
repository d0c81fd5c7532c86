"""How many instances there will be: forecasters, and how wrong they are."""
