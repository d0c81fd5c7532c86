"""What to rent for work that keeps arriving, on a budget: `sublet plan`."""
