"""The lines of a worker: to its agent, and to the others of its group."""
