"""Random trees of budgets, and a world that does its worst: `python -m sublet_lab.budgets --seeds 1000`."""
