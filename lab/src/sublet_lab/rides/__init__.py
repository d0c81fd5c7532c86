"""One job that knows grids, on a recorded spot market, driven by the kernel."""
