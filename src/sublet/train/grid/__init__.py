"""Training of a model in stages, in copies.

in_stages  the strategy of a session: steps, evaluations, changes of the grid
stages     a model as a sequence, and the seat of a worker in it; families makes them of models of transformers
pipeline   the micro-batches of a step, and their passes through a part
holdings   the units of a worker, and the optimizer over just these; replicas has units of others
meeting    agreement after a loss, and which worker sends which unit to which
member     one worker: it meets, takes what its seat needs, makes steps
gathering  follows orders into a mesh
gloo       messages between processes, and shared memory within a GPU
saving     checkpoints of all units, and the state beside them
"""
