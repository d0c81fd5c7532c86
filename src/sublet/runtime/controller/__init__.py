"""The live world: events in real time, leases on nodes, workers on agents, the bill and the history."""
