"""Whether a change of grid pays: one job after the other on spot, with a look ahead."""
