"""What trainer, agent and controller say to each other: plain dataclasses, one JSON object a line."""
