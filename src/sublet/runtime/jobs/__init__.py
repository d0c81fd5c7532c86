"""What a user submits: the job file, its bounds, and the specification that it becomes."""
