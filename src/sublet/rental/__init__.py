"""A rental plan for work that keeps arriving, on a budget: `sublet plan`."""
