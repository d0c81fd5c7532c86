"""The change that makes a training script elastic, found by the structure of its loop; nothing is run.

reading.py     names, and the text of a piece
edits.py       changes of a text that leave every other line as it is
extent.py      what loops go over, and how many turns they make
loops.py       backward(), the step that follows, the loops around them; functions in between
given.py       the model and the batches that the session is given
update.py      the update becomes s.step(loss), and options of the session
carried.py     values that the loop changes, and what is kept of them
session.py     the new text
frameworks.py  frameworks, known by their imports
looks.py       files that one worker writes, and lines to look at
convert.py     the diff, or why there is none, tried in a copy; its dry form is `inspect`
"""
