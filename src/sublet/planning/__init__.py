"""Building blocks of plans: what could be held, which job comes first, how many GPUs a job may have."""
