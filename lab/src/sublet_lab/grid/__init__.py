"""Grids as real processes that are killed: their training is compared with one undisturbed process.

model     a small model with dropout, and what one process makes of it
worker    a process: a member that follows orders, and ends where it is told to
control   who gives the orders: it starts workers, hears of deaths, and seats others
rows      one disturbed training each: grids, kill points, places, kills at random
"""
