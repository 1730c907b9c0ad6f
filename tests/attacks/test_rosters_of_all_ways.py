"""A coordinator mixes ways: by file it has the sum of all, and over a network it asks for that of
all but one.
"""

import pytest
from test_answering_again import code

from masked_parties import Parties

ALL, FEWER = ["p0", "p1", "p2", "p3"], ["p0", "p1", "p2"]


def answer_by_file(ledger, plan, parties, masked=True, answer="00", **more):
    """Write into a ledger that a plan was answered by file."""
    record = {
        "file": "00",
        "parties": parties,
        "masked": masked,
        "answer": answer,
        "withdrawn": False,
        "sums": "",
    }
    opened = {"k": 1, "rho": "", "reply": {}}
    ledger.release(plan.digest, ledger.digests([b"by file"]))
    ledger.change_plan(
        plan.digest,
        content=plan.content(),
        signatures={},
        waiting=None,
        opened=opened,
        offline={**record, **more},
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "roster-differs"),
        ({"masked": False}, None),  # anyone with the answers has these sums already
        ({"replaced": True}, None),  # p3 has withdrawn, so that no sum of all can be made
        ({"answer": "", "withdrawn": True}, None),  # this party has withdrawn
    ],
    ids=str,
)
@pytest.mark.parametrize("consent", [(), ("again",)], ids=str)
def test_an_answer_by_file_counts_for_rosters_over_a_network(more, why, consent):
    parties = Parties(4, consent=consent, once=True)
    answer_by_file(parties.ledgers["p0"], parties.new_plan(once=True), ALL, **more)
    keys = parties.keys(names=FEWER)
    if why is None:
        parties.shares(keys, ["p0"])
        return
    assert code(parties.shares, keys, ["p0"]) == why
    parties.shares(parties.keys(attempt=1), ["p0"])  # with all of them


def test_the_owner_may_allow_other_rosters():
    parties = Parties(4, consent=["dropouts"], dropouts=True)
    answer_by_file(parties.ledgers["p0"], parties.new_plan(), ALL)
    parties.shares(parties.keys(names=FEWER), ["p0"])


@pytest.mark.parametrize("roster", [ALL, FEWER])
def test_a_sum_over_a_network_counts_for_answers_by_file(roster):
    parties = Parties(4)
    parties.release()
    ledger, content = parties.ledgers["p0"], parties.new_plan().content()
    given = "11" * 32, content, ledger.digests([b"other data"]), roster
    if roster == FEWER:
        assert code(ledger.check, *given, ["again"]) == "roster-differs"
        assert code(ledger.check, *given, [], lambda other: "") == "roster-differs"
        ledger.check(*given[:1], {**content, "dropouts": True}, *given[2:], ["dropouts"])
    else:
        ledger.check(*given, [])


def test_withdrawals_replace_an_answer_by_file_alone():
    parties = Parties(4)
    ledger, first = parties.ledgers["p0"], parties.new_plan()
    answer_by_file(ledger, first, ALL)
    given = "11" * 32, first.content(), ledger.digests([b"by file"]), FEWER
    assert code(ledger.check, *given, [], lambda other: "p3 took part") == "samples-again"
    assert code(ledger.check, *given, ["again"], lambda other: "p3 took part") == "roster-differs"
    ledger.check(*given, [], lambda other: "")
