"""The seams of a process to its machine: clock, random numbers and files.

Everything that asks the world for one of these asks here, through a value that it was given. So a whole controller,
with agents, lines and providers, runs in virtual time over a simulated machine (`sublet_lab.world`), and does there
what it does here.
"""
