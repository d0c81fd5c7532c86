"""Messages between trainer, agent and controller: plain dataclasses, one JSON object a line."""
