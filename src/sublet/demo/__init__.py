"""`sublet demo`: three real jobs on a recorded spot market, and with `--grid` one in parts."""
