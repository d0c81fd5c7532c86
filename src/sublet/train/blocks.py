"""How a model is cut: what a user says of it. No torch here: it is imported when a session is made."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.errors import InvalidValue

__all__ = ["Blocks"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The name of the list of blocks, as `transformer.h` or `model.layers`: the model may be cut between any two."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidValue("Blocks", self.name, "the name of a list of blocks, as transformer.h")
