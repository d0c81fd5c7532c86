"""The brain: events in, actions out. It reads no clock, draws no chance, calls no solver and does no I/O."""
