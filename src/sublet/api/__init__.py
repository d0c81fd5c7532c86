"""HTTP over the controller: for the command line, for scripts, for Prometheus. Loopback only."""
