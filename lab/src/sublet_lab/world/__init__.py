"""Deterministic faults: the shipped controller, agents and providers in a simulated world, from a seed.

    heap, loop, machine   virtual time: one heap of what is due, processes that can be killed and stopped, their clocks
    network, disk, cloud  what lies between and under them, and everything that goes wrong there
    node, worker          a machine with the real agent on it, and what trains there
    life                  one seed: jobs, users, controllers one after the other, faults from a list, then calm
    laws                  what must hold after every event, and at the end
    faults, shrink, look  what can go wrong; the least of it that breaks a law; a life that a person can read

`python -m sublet_lab.world --seeds 1000` lives a thousand of them. Nothing here imports torch or scipy, opens a socket,
sleeps, or asks the clock or the RNG of the machine: two runs of a seed are equal to the last byte.
"""
