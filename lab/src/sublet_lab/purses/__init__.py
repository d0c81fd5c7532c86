"""Random trees of purses, and a world that does its worst: `python -m sublet_lab.purses --seeds 1000`."""
