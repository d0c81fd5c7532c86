"""The change that makes a training script elastic, found by the structure of its loop; nothing is run.

reading.py     names, and the text of a piece
edits.py       changes of a text that leave every other line as it is
extent.py      the iterables of loops, and how many turns they make
loops.py       backward(), the step that follows, the loops around them; functions in between
given.py       the model and the batches of the session
update.py      the update becomes s.step(loss), and options of the session
carried.py     values that the loop changes, and which of them are kept
session.py     the new text
frameworks.py  frameworks, known by their imports
looks.py       files that one worker writes, and lines to look at
convert.py     the diff, or why there is none, tried in a copy; its dry form is `inspect`
"""
