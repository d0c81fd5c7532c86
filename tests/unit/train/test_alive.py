"""What a process holds of a kind."""

from __future__ import annotations

from sublet.train.alive import alive


class Kind:
    pass


class Below(Kind):
    pass


class Proxy:
    """Says that it is what it stands for."""

    @property
    def __class__(self):
        return Kind


def test_all_of_a_kind_are_found_and_nothing_that_only_says_so():
    assert alive(Kind) == []
    held = [Kind(), Below(), Proxy()]
    assert isinstance(held[2], Kind)
    assert {id(each) for each in alive(Kind)} == {id(each) for each in held[:2]}
    assert [id(each) for each in alive(Below)] == [id(held[1])]
