"""DeepVM's planner as published, to compare with."""
