"""Sublet's own policy: one price of time that meets the budget, one surcharge per pool that is short."""
