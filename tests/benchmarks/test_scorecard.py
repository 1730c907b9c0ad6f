"""The scorecard: verdicts follow from the numbers, and the page shows them."""

import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("scorecard", Path(__file__).parents[2] / "benchmarks" / "scorecard.py")
scorecard = sys.modules["scorecard"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(scorecard)
Claim, read_claims, table = scorecard.Claim, scorecard.read_claims, scorecard.table
PAGE = Path(__file__).parents[2] / "docs" / "research" / "bench.md"


def claim(**numbers):
    return Claim(paper="A", where="Table 0", says="more is more", setting="here", command="true", **numbers)


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
    ],
)
def test_the_verdict_follows_from_the_interval_and_the_tuning(numbers, verdict):
    assert claim(**numbers).verdict == verdict


def test_every_paper_has_claims_undecided_ones_say_why_and_the_page_shows_the_scorecard():
    claims = read_claims()
    assert [one.says for one in claims if one.verdict == "undecided" and not one.why] == []
    assert len(claims) >= 25
    assert {one.paper for one in claims} == {"FedZSL", "DistZSL", "FZSL", "FedFSL"}
    assert table(claims) in PAGE.read_text("utf-8")
