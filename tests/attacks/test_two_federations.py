"""A second federation asks for sums of the same samples: of another coordinator, or of the same one
with a new authority. One ledger serves both, so that samples and budgets count for all of them.
"""

from dataclasses import replace

import pytest
from test_answering_again import FIRST, PHOTO, add_photo, choose, code, total
from test_rosters_of_all_ways import ALL, answer_by_file

from fedunseen.core.errors import RefusedError
from fedunseen.deploy.secagg.enrolment import in_memory
from fedunseen.deploy.secagg.ledger import Ledger
from masked_parties import Parties

AGAIN, REMOVAL = ["again"], ["removal"]
BOTH = ["again", "federations"]


def second(first, names=None, consent=(), **plan):
    """Return another federation, of another authority, over the ledgers and samples of the first."""
    who = list(names or first.names)
    other = Parties(len(who), consent=consent, names=who, **plan)
    assert other.enrolment.authority != first.enrolment.authority
    other.ledgers |= {name: first.ledgers[name] for name in other.names if name in first.names}
    other.samples |= {name: first.samples[name] for name in other.names if name in first.names}
    return other


@pytest.mark.parametrize("once", [False, True], ids=["trained", "closed form"])
@pytest.mark.parametrize("case", ["one ledger", "consent", "two ledgers"])
def test_a_sample_that_was_added_is_no_difference_of_two_federations(case, once):
    """With two ledgers the attack succeeds, which is not promised to be prevented."""
    first = Parties(4, once=once)
    before = total(first, first.plan, first.values)
    values = add_photo(first, first.values)
    other = second(first, consent=BOTH if case == "consent" else (), once=once)
    if case == "two ledgers":
        other.ledgers = {name: Ledger() for name in other.names}
    if case == "one ledger":
        assert code(other.restart) == "samples-again"
        return
    other.restart()
    other.agree(other.plan)
    assert (total(other, other.plan, values) - before).tolist() == PHOTO.tolist()


def test_two_federations_over_other_samples_take_turns(tmp_path):
    """Each has its own rosters and serial numbers."""
    first = Parties(4, tmp_path)
    first.release()
    other = Parties(3)  # without p3
    other.folder = tmp_path
    other.samples = {name: [f"{name} new".encode()] for name in other.names}
    other.restart()
    other.agree(other.plan)
    other.release()
    first.restart()
    first.release(1)
    other.restart()
    other.release(1)
    ledger = Ledger(tmp_path / "p0", "p0")
    rosters = []
    for parties in (first, other):
        ledger.pin(parties.enrolment)
        rosters.append(ledger.rosters)
    assert rosters == [[first.names], [other.names]]


@pytest.mark.parametrize("names", [ALL, ALL[:3]], ids=["all", "fewer"])
def test_consent_to_the_same_samples_allows_no_other_roster(names):
    """The difference of the sums of four and of three would be one party's update."""
    first = Parties(4)
    first.release()
    other = second(first, names, BOTH)
    other.restart()
    other.agree(other.plan)
    if names == ALL:
        other.release()
        return
    assert code(other.release) == "roster-differs"
    other.consent = ["again", "dropouts"]
    other.plan = other.new_plan(dropouts=True)
    other.restart()
    other.agree(other.plan)
    other.release()


@pytest.mark.parametrize("consent", [AGAIN, BOTH], ids="-".join)
def test_a_party_of_two_federations_needs_a_word_that_names_the_other_ones(consent, tmp_path):
    """No difference of their sums is one party's where they share no one else."""
    first = Parties(4, tmp_path)
    first.release()
    other = second(first, ["p0", "r1", "r2"])
    with pytest.raises(RefusedError, match=r"p1, p2, p3 took part.*again --consent federations"):
        other.restart()
    other.consent = consent
    if consent == AGAIN:
        assert code(other.restart, "p0") == "samples-again"
        return
    other.restart()
    other.agree(other.plan)
    other.release()
    first.ledgers["p0"].compare_with([])
    first.restart()
    assert code(first.release, 1) == "roster-differs"  # what has begun needs the word, too
    first.consent = BOTH
    first.ledgers |= {"p0": other.ledgers["p0"]}
    first.restart()
    first.release(1)


@pytest.mark.parametrize("here", ["p0", "p3"], ids=["the same name", "the name of another"])
def test_who_took_part_elsewhere_is_named_with_the_names_of_that_federation(here, tmp_path):
    """p3 there, whose update may be what is left, is not this party, whose name here is p3."""
    first = Parties(4, tmp_path)
    first.release()
    other = Parties(3, names=[here, "r1", "r2"])
    other.ledgers[here] = first.ledger("p0")  # after a restart
    other.samples[here] = first.samples["p0"]
    with pytest.raises(RefusedError, match="in another federation p1, p2, p3 took part"):
        other.restart(here)


@pytest.mark.parametrize("opened", [ALL, ALL[1:]], ids=["all open", "p0 is not asked to open"])
@pytest.mark.parametrize("dropouts", [False, True])
def test_sums_without_a_roster_name_the_others_too(opened, dropouts, tmp_path):
    """With privacy.dropouts = 'allow' no roster is kept; the others open a sum without p0, too."""
    first = Parties(4, tmp_path, consent=["dropouts"], dropouts=dropouts)
    rho, _ = first.up_to_masked()
    first.open(rho, names=opened)
    first.ledgers["p0"] = first.ledger("p0")  # after a restart
    first.ledgers["p0"].pin(first.enrolment, "p0")
    assert first.ledgers["p0"].rosters == [ALL] * (opened == ALL and not dropouts)
    assert first.ledgers["p0"].in_masked_sums() == ALL[1:]
    other = second(first, ["p0", "p1", "r2"], AGAIN)
    with pytest.raises(RefusedError, match=r"p1, p2, p3 took part.*again --consent federations"):
        other.restart("p0")
    other.consent = BOTH
    other.restart()
    other.agree(other.plan)
    if dropouts:  # the rule of one roster is as before: p1 is in both
        other.release()
    else:
        assert code(other.release) == "roster-differs"


@pytest.mark.parametrize("names", [["p0", "p1", "r2"], ["p0", "p1", "p2"]], ids=",".join)
def test_no_word_allows_what_may_be_another_roster_of_one_coordinator(names):
    """Who is in one federation alone would be shown by those that are in both."""
    first = Parties(4)
    first.release()
    other = second(first, names, BOTH)
    other.restart()
    other.agree(other.plan)
    keys = other.keys()
    assert code(other.shares, keys, ["p0"]) == "roster-differs"


@pytest.mark.parametrize("consent", [AGAIN, BOTH], ids="-".join)
def test_names_of_another_federation_are_no_proof_of_the_same_parties(consent):
    """The attack: a colluder has the name of p3 there, so that the rosters were the same, and the
    difference was the update of p3, who was not asked.
    """
    first = Parties(4)
    before = total(first, first.plan, first.values)
    other = second(first, ALL, consent)
    other.ledgers["p3"], other.samples["p3"] = Ledger(), [b"made up"]
    values = {**first.values, "p3": {name: 0 * one for name, one in first.values["p3"].items()}}
    if consent == AGAIN:
        assert code(other.restart) == "samples-again"
        return
    other.restart()
    other.agree(other.plan)
    shown = before - total(other, other.plan, values)
    assert shown.tolist() == first.values["p3"]["w"].tolist()


@pytest.mark.parametrize("what", ["choosing", "asking"])
@pytest.mark.parametrize("same", [True, False], ids=["one federation", "two federations"])
def test_what_needs_no_consent_is_of_one_federation(same, what):
    first = Parties(4, once=what == "asking", confidence="auto")
    if what == "choosing":
        choose(first)
    else:
        first.release()
    other = first if same else second(first)
    changes = {"once": True, "sums": 1, "confidence": "asking"} if what == "asking" else {}
    other.plan = other.new_plan(**changes)
    if same:
        other.agree(other.plan)
        other.release()
    else:
        assert code(other.restart) == "samples-again"


@pytest.mark.parametrize("same", [True, False], ids=["one federation", "two federations"])
def test_a_plan_by_file_replaces_none_of_another_federation(same):
    """Who has withdrawn there is not who has this name here."""
    parties = Parties(4)
    ledger, plan = parties.ledgers["p0"], parties.new_plan()
    answer_by_file(ledger, plan, ALL)
    if not same:
        ledger.pin(in_memory(ALL)["p0"].enrolment)
    assert ledger.same_federation(plan.digest) == same
    given = "11" * 32, plan.content(), ledger.digests([b"by file"]), ALL[:3], (), lambda other: ""
    if same:
        ledger.check(*given)
    else:
        assert code(ledger.check, *given) == "samples-again"


def removal(parties, consent):
    """Sign a removal of the first sample of the first three."""
    plan = parties.new_plan(once=True, removing=ALL[:3])
    parties.ledgers["p0"].check_removed(
        plan.digest, plan.content(), parties.ledgers["p0"].digests([b"p0 0"]), consent
    )
    return plan


def test_a_removal_subtracts_from_sums_of_its_own_federation():
    first = Parties(4, once=True)
    first.release()
    removal(first, ())
    other = second(first, consent=BOTH, once=True)
    other.restart()
    assert code(removal, other, ()) == "removal-of-other-sums"
    other.agree(other.plan)
    other.release()
    assert code(removal, other, ()) == "removal-of-other-sums"  # the other's sums have it, too
    ledger = other.ledgers["p0"]
    gone = ledger.digests([b"p0 0"])
    for parties in (first, other):  # in each federation once
        ledger.pin(parties.enrolment)
        plan = removal(parties, REMOVAL)
        assert [gone <= sums for _, sums in ledger.remaining(plan.digest, gone)] == [True]
        ledger.change_plan(plan.digest, content=plan.content(), opened=None)
        ledger.release(plan.digest, gone)
        assert code(removal, parties, REMOVAL) == "refused"
        assert [gone <= sums for _, sums in ledger.remaining("11" * 32, gone)] == [False]


@pytest.mark.parametrize("same", [True, False], ids=["one federation", "two federations"])
@pytest.mark.parametrize("samples", ["the same", "others"])
def test_a_ledger_that_knew_one_federation_keeps_its_plans_and_rosters(same, samples, tmp_path):
    folder = tmp_path / "p0"
    folder.mkdir()
    for path in (FIRST / "closed").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    ledger = Ledger(folder, "p0")
    enrolment = in_memory(ALL)["p0"].enrolment
    if same:
        (authority,) = ledger._content["federations"]
        enrolment = replace(enrolment, authority=bytes.fromhex(authority))
    ledger.pin(enrolment)
    given = [b"p0 0"] if samples == "the same" else [b"new"]
    asked = "00" * 32, Parties(3).plan.content(), ledger.digests(given), ALL[:2]
    # in the other federation its rosters may be of looks, whose samples no one knows
    first = "roster-differs" if same and samples == "others" else "samples-again"
    assert code(ledger.check, *asked, ()) == first
    assert code(ledger.check, *asked, BOTH) == "roster-differs"
    ledger.write({})
    assert Ledger(folder, "p0")._content == ledger._content
