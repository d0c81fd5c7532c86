"""Forecasts, also with more money: futures of a controller's state, simulated in a process of their own."""
