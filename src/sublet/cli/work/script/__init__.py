"""The change that makes a training script elastic, found by the structure of its loop.

    reading.py     names, and the text of a piece
    edits.py       changes of a text that leave every other line as it is
    loops.py       backward(), the loop around it, the step that follows; functions in between
    extent.py      what loops go over, and how many epochs or steps
    source.py      where batches come from: a loader, or a function that draws them
    models.py      which models the optimizer has, and whether the loss is a sum
    update.py      the update becomes s.step(loss), and options of the session
    carried.py     what is remembered from turn to turn
    lines.py       heads, counts and other lines of the loop
    session.py     all of this put together
    frameworks.py  frameworks, known by their imports
    looks.py       files that one worker writes, and kinds of lines to look at
    convert.py     the diff, or why there is none, tried in a copy; its dry form is `inspect`

Nothing of the script is run here: `sublet rehearse` runs it.
"""
