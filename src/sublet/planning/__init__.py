"""Building blocks of plans: what could be held, which job comes first, how many workers it may have."""
