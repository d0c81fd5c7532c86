"""What users ask of a running controller, and what it answers."""
