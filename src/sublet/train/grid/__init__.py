"""Training of a model in stages, in copies: what a worker computes, holds, hands over and agrees on.

in_stages  the strategy of a session, with serving beside its steps; telling says to the controller how far it is
stages     a model as a sequence, and where a worker sits in it; families makes them of models of transformers
atoms      the micro-batches of a step, and in which order a part works on them
pipeline   the passes of a step through a part; borders carries tensors from one to the next
arena      the state of one unit, as one piece of memory
holdings   the units that a worker has, and the optimizer over just these; keeping has those of others
meeting    what those who are left after a loss agree on, and who sends which unit to whom
member     one worker: it meets, takes what its seat needs, makes steps
gathering  whose orders it follows, into which mesh
mesh       what workers say to one another; gloo carries it between processes, sharing within a GPU
saving     checkpoints, of the whole of units and of the course beside them
"""
