"""Where in its loop a script is when its state is taken, so that another who takes it over has it from there on.

    for batch in s.batches():       BATCH      before the lines that come before a step
        block.scale = f(s.steps)
        s.step(loss_of, batch)      CALL       after these lines, before the step;   STEPPED    right after it
        s.evaluate(loss_of, ...)    EVALUATION with a number: the first, second, ... since the step
        block.scale *= 0.9
    print(...)                      END        where the session is left, after the lines behind the loop

A newcomer gives its `loss_of` with its first `s.step`, and learns only there at which step the others are: what its
loop has done before was for step 0. So that call makes no step, and neither does the next, in which the loop goes over
the last step as the others did (`course`). The lines that it passes on its way to where they were have run there
already: the state is laid once more at that point, and they count once.
"""

from __future__ import annotations

__all__ = ["BATCH", "CALL", "END", "STEPPED", "evaluation", "number_of"]

BATCH, CALL, STEPPED, END = "batch", "call", "stepped", "end"


def evaluation(number: int) -> str:
    """In it: the first since the last step is 0."""
    return f"evaluation {number}"


def number_of(place: str) -> int:
    """Of an evaluation; -1 of any other place."""
    name, _, number = place.partition(" ")
    return int(number) if name == "evaluation" else -1
