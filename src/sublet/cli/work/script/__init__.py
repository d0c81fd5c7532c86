"""What a training script is, as far as its text says, and what has to change for it to be elastic.

    reading.py    names, and what they stand for
    facts.py      what is in it: optimizers, loaders, loops, what is saved
    advice.py     what will go wrong, and what to do about it
    splice.py     changes of a text that leave every other line as it is
    clipping.py   gradients that it edits by hand
    remembering.py  what it remembers by itself, which is lost with its process
    session.py    a loop over a loader becomes one of a session
    own_loop.py   a loop over steps keeps its own, with checkpoints
    convert.py    which of the two, or neither

Nothing of the script is run. What is not understood is left to its owner, and never guessed at.
"""
