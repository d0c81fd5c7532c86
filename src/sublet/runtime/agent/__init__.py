"""What runs on a node: one agent that starts, watches and ends workers, and a warm template that it is forked from."""
