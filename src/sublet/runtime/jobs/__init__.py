"""Job files: their bounds, and the specification that they become."""
