"""A job in parts, live: a paced script, what its workers wrote down, and runs of it to look at."""
