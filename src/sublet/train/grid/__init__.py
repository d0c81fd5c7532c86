"""Training of a model in stages, in copies: what a worker computes, holds, hands over and agrees on.

atoms      which samples a copy takes: the same ones, whatever the grid
schedule   in which order a part works on them
moves      who sends which unit to whom
meeting    what those who are left after a loss agree on, before anything moves
arena      the state of one unit, as one piece of memory
stages     a model as a sequence, and what of it lies together; families makes them of models of transformers
holdings   the units that a worker has, and the optimizer over just these
pipeline   the passes of a step through a part; borders carries tensors from one to the next
member     one worker: it meets, takes what its seat needs, makes steps
gathering  whose orders it follows, into which mesh
mesh       what workers say to one another; gloo carries it between processes
"""
