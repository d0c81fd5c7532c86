"""The claim that the live world and the simulator agree."""
