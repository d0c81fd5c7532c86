"""Jobs that are cut into parts, live: a paced script, what its workers wrote down, and runs of it to look at."""
