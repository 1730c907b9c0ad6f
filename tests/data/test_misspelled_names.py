"""A name that is almost a known one: what counts as a slip, and what as another word."""

import pytest

from fedunseen.data.names import misspelled

KNOWN = ("lion", "zebra", "Polar_Bear", "sunflower", "class 1")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("lionn", "lion"),
        ("Zebraa", "zebra"),
        ("zeba", "zebra"),
        ("zebro", "zebra"),
        ("lino", "lion"),
        ("loon", "lion"),
        ("sunflwoers", "sunflower"),  # two of nine letters
        ("polar baer", "Polar_Bear"),
        ("loin cloth", ""),
        ("lionne", ""),  # two of four
        ("tiger", ""),
        ("lion", ""),
        ("Polar Bear", ""),  # the same name
        ("class 2", ""),
    ],
)
def test_a_slip_is_a_letter_or_two_in_a_long_name(name, near):
    assert misspelled(name, KNOWN) == near


def test_the_nearest_name_is_meant():
    assert misspelled("sunflowers", ["sunflow", "sunflower"]) == "sunflower"
