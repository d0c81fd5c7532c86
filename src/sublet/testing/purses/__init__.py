"""Random trees of purses, and a world that does its worst: `python -m sublet.testing.purses --seeds 1000`."""
