"""World 2: wall clock, real processes, real money. The controller drives the same kernel as the simulator."""
