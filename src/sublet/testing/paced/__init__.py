"""Real training jobs whose computing takes as long as they are told."""
