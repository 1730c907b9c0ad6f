"""The scorecard: verdicts follow from the numbers, and the page shows them."""

from pathlib import Path

import pytest

from scorecard import Claim, read_claims, table


def claim(**numbers):
    return Claim(
        paper="A", where="Table 0", says="more is more", setting="here", command="true", **numbers
    )


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ({"effect": 2.0, "half": 1.9, "tuned": True}, "confirmed"),
        ({"effect": 2.0, "half": 2.0, "tuned": True}, "undecided"),
        ({"effect": 2.0, "tuned": True}, "undecided"),  # one seed
        ({"effect": 2.0, "half": 1.9}, "undecided"),  # not tuned alike
        ({}, "undecided"),
        ({"effect": -2.0, "half": 1.9, "tuned": True}, "refuted"),
        ({"effect": -2.0, "half": 1.9}, "undecided"),  # not tuned alike
        ({"effect": -2.0, "half": 2.0, "tuned": True}, "undecided"),
        ({"effect": -2.0, "half": 1.9, "printed": True}, "refuted as printed"),
        ({"effect": 2.0, "half": 1.9, "printed": True}, "undecided"),  # printed confirms nothing
        ({"effect": -2.0, "printed": True}, "undecided"),
        ({"effect": 2.0, "half": 0.0, "tuned": True, "counted": True}, "counted"),
    ],
)
def test_the_verdict_follows_from_the_interval_and_the_tuning(numbers, verdict):
    assert claim(**numbers).verdict == verdict


def test_every_paper_has_claims_undecided_ones_say_why_and_the_page_shows_the_scorecard():
    claims = read_claims()
    assert [one.says for one in claims if one.verdict == "undecided" and not one.why] == []
    assert len(claims) >= 25
    assert {one.paper for one in claims} == {"FedZSL", "DistZSL", "FZSL", "FedFSL"}
    page = Path(__file__).parents[2] / "docs" / "research" / "bench.md"
    assert table(claims) in page.read_text("utf-8")
