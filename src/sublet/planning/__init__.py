"""Building blocks of plans: what could be held, who comes first, how wide a job may be."""
