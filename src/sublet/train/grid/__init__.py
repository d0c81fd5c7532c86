"""Training of a model that is cut into parts, in copies: what a worker computes, holds, hands over and agrees on.

atoms      which samples a copy takes: the same ones, whatever the grid
schedule   in which order a part works on them
moves      who sends which unit to whom
meeting    what those who are left after a loss agree on, before anything moves
arena      the state of one unit, as one piece of memory
cutting    one part of a model that knows nothing of parts
"""
