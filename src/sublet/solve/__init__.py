"""How to optimise: numbers in, numbers out. Nothing here knows what a GPU is."""
