"""What a training script is, as far as its text says, and what has to change for it to be elastic.

    reading.py    names, and what they stand for
    facts.py      what is in it: optimizers, loaders, loops, what is saved
    advice.py     what will go wrong, and what to do about it
    texts.py      texts of several lines
    splice.py     changes of a text that leave every other line as it is
    calls.py      functions that scripts call, by what they do to what they are given
    kinds.py      what a name stands for
    effects.py    what lines do to what names stand for
    course.py     the lines of a training loop in their order, and which bear on its result
    flow.py       what the loop carries from turn to turn: known to the session, kept, or lost
    keeping.py    what can be kept
    losses.py     how a loss grows with its samples
    clipping.py   gradients that it edits by hand
    update.py     the update, in the orders that a session makes it in
    files.py      what is written into files, or told to a tracker
    dice.py       what is chosen by a die of torch
    emptied.py    files that every start begins anew
    by_one.py     what of that is left to one worker
    now_and_then.py  parts of it that are not in every turn
    unfreezing.py parameters that are trained from some turn on
    trainers.py   loops in methods, and what to write there
    counting.py   a count of batches before their steps
    leaving.py    where the loop is left before its end
    remembering.py  names become those of what is kept
    memories.py   what functions remember from call to call
    with_bar.py   a bar in a `with` around the batches
    functions.py  functions that are looked at where they are called
    epoch_function.py  a loop in a function
    session.py    a loop over a loader becomes one of a session
    own_loop.py   a loop over steps keeps its own, with checkpoints
    convert.py    which of the two, or neither

Nothing of the script is run. What is not understood is left to its owner, and never guessed at.
"""
