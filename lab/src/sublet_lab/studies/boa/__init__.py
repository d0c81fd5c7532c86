"""The claims about budget-optimal rental."""
