"""The processes of a node: an agent that starts, watches and ends workers, and a warm template to fork them from."""
