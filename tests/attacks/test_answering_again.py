"""A coordinator asks for another sum of the same samples: what has changed between two sums is
their difference.
"""

import hashlib
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from fedunseen.core.errors import FedUnseenError, RefusedError
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.releases import Releases, checked
from fedunseen.deploy.remote.clients import MaskedParties
from fedunseen.deploy.remote.wire import pack, unpack
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.party import SecAggClient
from fedunseen.deploy.secagg.primitives import SecAggError
from fedunseen.deploy.secagg.server import MaskedTotal
from fedunseen.experiment.assemble import load_data
from masked_parties import Parties
from small_federation import (
    HELD,
    NAMES,
    Recorder,
    experiment,
    greeting,
    host,
    party,
    write_all,
    write_party,
)

FIRST = Path(__file__).parent / "first_version"
PHOTO = np.array([0.125, -0.5])  # the gradient of one more photo
OPENERS = pytest.mark.parametrize(
    "openers", [None, ["p1", "p2", "p3"]], ids=["all open", "p0 is not asked to open"]
)
ONCE = pytest.mark.parametrize("once", [False, True], ids=["trained", "closed form"])


def code(call, *given, **named):
    """Return the code of a refusal."""
    with pytest.raises(RefusedError) as found:
        call(*given, **named)
    return found.value.code


def total(parties, plan, values, k=0, openers=None):
    """Return the decoded sum of an attempt, as the coordinator has it, who asks these to open it."""
    shares = parties.shares(parties.keys(k, plan=plan))
    rho = shares["p0"]["rho"]
    masked = {
        name: parties.mask(name, parties.masked_request(name, shares), values[name])
        for name in parties.names
    }
    opened = parties.open(rho, k, openers, plan)
    keys = {name: client._attempt.keys for name, client in parties.clients.items()}
    seeds = {name: one["seed"] for name, one in keys.items()}
    commitments = {name: one["share_commitments"] for name, one in shares.items()}
    threshold = parties.enrolment.threshold
    found = MaskedTotal(
        plan.digest, k, rho, threshold, sum(masked.values()), seeds, commitments, []
    )
    for name, reply in opened.items():
        found.take_open(name, reply)
    return parties.layout.decode(found.sum(), len(parties.names), bytes.fromhex(rho))["w"]


def add_photo(parties, values):
    """Let p0 hold one more photo, with its gradient in its update."""
    parties.samples["p0"] = [*parties.samples["p0"], b"one more photo"]
    return {**values, "p0": {**values["p0"], "w": values["p0"]["w"] + PHOTO}}


@ONCE
@OPENERS
@pytest.mark.parametrize("consent", [(), ("again",)], ids=["", "consent"])
def test_a_sample_that_was_added_is_no_difference_of_two_runs(once, openers, consent):
    """With the owner's consent the attack succeeds: it reaches the line that refuses it."""
    parties = Parties(4, consent=consent, once=once)
    before = total(parties, parties.plan, parties.values, openers=openers)
    values, second = add_photo(parties, parties.values), parties.new_plan(once=once)
    if not consent:
        assert code(parties.agree, second) == "samples-again"
        return
    parties.agree(second)
    assert (total(parties, second, values) - before).tolist() == PHOTO.tolist()


@ONCE
@OPENERS
@pytest.mark.parametrize("consent", [(), ("again",)], ids=["", "consent"])
@pytest.mark.parametrize("asked", [(), ("p0",)], ids=["", "for keys of the next sum"])
def test_a_sample_that_was_added_is_no_difference_of_two_rounds(
    once, openers, consent, asked, tmp_path
):
    """Whoever is asked for new keys discards its shares: the others open the sum without them."""
    parties = Parties(4, tmp_path, consent, once=once)
    before = total(parties, parties.plan, parties.values, openers=openers)
    for name in asked:
        with suppress(SecAggError):  # a plan of one sum has no next one
            parties.keys(1, 0, [name])
    values = add_photo(parties, parties.values)
    if not consent:
        assert code(parties.restart) == "samples-changed"
        return
    parties.restart()
    assert (total(parties, parties.plan, values, 1) - before).tolist() == PHOTO.tolist()


@pytest.mark.parametrize("corrected", [False, True], ids=["the same label", "another label"])
def test_a_label_that_was_corrected_makes_another_sample(corrected, tmp_path):
    """It moves from one class's sum to another's: the difference of two rounds would show it."""
    parties = Parties(4, tmp_path)
    parties.samples["p0"] = [(b"photo 0", b"cat"), (b"photo 1", b"dog")]
    parties.agree(parties.plan)
    parties.release()
    if corrected:
        parties.samples["p0"][0] = (b"photo 0", b"dog")
        assert code(parties.restart) == "samples-changed"
        assert code(parties.sign, "p0", parties.new_plan()) == "samples-again"
        return
    parties.restart()
    parties.release(1)


@pytest.mark.parametrize("now", [1, 3], ids=["one copy less", "one copy more"])
def test_another_number_of_copies_makes_other_samples(now, tmp_path):
    """A sum has each of them, so that the difference of two rounds is the sample."""
    parties = Parties(4, tmp_path)
    parties.samples["p0"] = [(b"photo 0", b"cat"), *[(b"photo 1", b"cat")] * 2]
    parties.agree(parties.plan)
    parties.release()
    parties.samples["p0"] = [*[(b"photo 1", b"cat")] * now, (b"photo 0", b"cat")]
    assert code(parties.restart) == "samples-changed"


def test_a_removal_asks_for_no_counts_of_answers():
    parties = Parties(4, consent=["removal"])
    ledger = parties.ledgers["p0"]
    content = {**parties.plan.content(), "removing": ["p0"], "confidence": "asking"}
    with pytest.raises(RefusedError, match="counts of answers, which subtract nothing"):
        ledger.check("11" * 32, content, ledger.digests([b"p0 0"]), None, ("removal",))


def test_all_labels_renamed_make_no_other_samples():
    parties = Parties(4)
    parties.samples["p0"] = [(b"photo 0", b"cat"), (b"photo 1", b"cat")]
    parties.agree(parties.plan)
    parties.release()
    parties.samples["p0"] = [(b"photo 0", b"lynx"), (b"photo 1", b"lynx"), (b"photo 2", b"lynx")]
    assert code(parties.sign, "p0", parties.new_plan()) == "samples-again"


def test_a_ledger_that_kept_contents_alone_knows_them_still(tmp_path):
    """That of an earlier version: a label may have changed since, or a copy have come, so that no
    further round is answered without consent, and nothing is removed.
    """
    parties = Parties(4, tmp_path)
    parties.samples["p0"] = [(b"photo 0", b"cat"), (b"photo 1", b"dog")]
    parties.agree(parties.plan)
    parties.release()
    (file,) = (tmp_path / "p0").glob("released-*")
    content = file.read_bytes().removeprefix(b"samples with classes\n")[:-32]
    old = b"".join(content[start : start + 16] for start in range(0, len(content), 32))
    file.write_bytes(old + hashlib.sha256(old).digest())
    assert code(parties.restart, "p0") == "samples-changed"
    ledger, plan = parties.ledgers["p0"], parties.plan.digest
    digests = ledger.digests(parties.samples["p0"])
    content = parties.plan.content()
    other = "11" * 32, content, ledger.digests([b"new"]), None, ()
    ledger.compare_with([*parties.samples["p0"], b"new"])
    ledger.check(*other)
    ledger.compare_with([parties.samples["p0"][0], b"new"])
    assert code(ledger.check, *other) == "samples-again"
    for question in ({"confidence": "asking"}, {"once": True}, {}):
        kept = {**ledger.plans[plan]["content"], "choosing": True, "confidence": "auto"}
        ledger.change_plan(plan, content=kept)
        asked = "11" * 32, {**content, **question}, digests, None, ()
        assert code(ledger.check, *asked) == "samples-again"
        assert code(ledger.check, *asked, lambda other: "") == "samples-again"
    with pytest.raises(RefusedError, match="in no sum that this party's ledger knows"):
        ledger.check_removed("11" * 32, content, digests, ())
    ledger.change_plan(plan, content=content)
    parties.consent = ["again"]
    parties.restart("p0")
    parties.release(1)
    parties.consent = []
    parties.restart("p0")  # from the round that its owner has consented to, all is known
    parties.release(2)
    assert file.read_bytes()[:-32].removeprefix(b"samples with classes\n") == b"".join(
        sorted(digests)
    )


@pytest.mark.parametrize("kept", [False, True], ids=["written anew", "others come"])
def test_features_that_were_written_anew_are_no_other_samples(kept, tmp_path):
    """Another processor gives them another last bit: one more sample would be the difference."""
    data = write_all(tmp_path / "data")
    greeted = greeting(experiment(data), tmp_path / "run")
    path = data / "north" / "features.npz"
    before = dict(np.load(path))
    ledger, plan = Ledger(), Parties(3).plan

    def ready():
        return PartyData(data / "north", masked=True).prepare(*greeted)

    ledger.change_plan(plan.digest, content=plan.content(), opened=None)
    ledger.release(plan.digest, ledger.digests(ready().raw()))
    anew = {**before, "features": np.nextafter(before["features"], np.float32(9))}
    if kept:  # beside those of the plan
        anew = {key: np.concatenate([before[key], anew[key]]) for key in before}
    np.savez(path, **anew)
    now = ready()
    samples = ledger.digests(now.raw())
    ledger.compare_with(now.present())
    if kept:
        samples -= ledger._all_released()[plan.digest]
        ledger.check("00" * 32, plan.content(), samples, None, ())
        return
    assert code(ledger.check, "00" * 32, plan.content(), samples, None, ()) == "samples-again"


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize("changed", [False, True], ids=["the same samples", "one more"])
def test_a_sum_is_opened_for_the_samples_that_it_has(changed, restarted, tmp_path):
    """A coordinator waits with opening a sum until the folder has another sample, which the next
    round would show.
    """
    parties = Parties(4, tmp_path)
    rho, _ = parties.up_to_masked()
    if changed:
        add_photo(parties, parties.values)
    again = parties.restart if restarted else partial(parties.sign, "p0", parties.plan)
    if not changed:
        again()
        assert len(parties.open(rho)) == 4
        return
    assert code(again) == code(parties.open, rho, names=["p0"]) == "samples-changed"


def test_a_plan_that_was_signed_before_is_judged_again_when_its_sum_is_masked():
    """The others can open the first sum, and need not ask this party to."""
    parties = Parties(4)
    second = parties.new_plan()
    parties.agree(second)
    rho, _ = parties.up_to_masked()
    assert code(parties.up_to_masked, plan=second) == "samples-again"
    assert len(parties.open(rho)) == 4


def test_a_sum_that_an_earlier_version_has_masked_is_not_opened(tmp_path):
    """That version kept its samples when the sum was opened, and here they are not known."""
    parties = Parties(4, tmp_path)
    rho, _ = parties.up_to_masked()
    record = parties.ledgers["p0"].plans[parties.plan.digest]
    waiting = {**record["waiting"], "samples": "00" * 32}
    parties.ledgers["p0"].change_plan(parties.plan.digest, waiting=waiting)
    with pytest.raises(SecAggError, match="masked nothing for this roster"):
        parties.open(rho, names=["p0"])


@ONCE
def test_all_rounds_of_a_plan_are_answered_and_those_of_a_resumed_run(once, tmp_path):
    parties = Parties(4, tmp_path, once=once)
    for k in range(3):
        parties.release(k)
        parties.restart()
    files = [*(tmp_path / "p0").glob("released-*")]
    assert len(files) == 1
    assert len(files[0].read_bytes()) == len("samples with classes\n") + 3 * 32 + 32


def test_a_plan_goes_on_without_new_consent_after_another_that_its_owner_allowed(tmp_path):
    parties = Parties(4, tmp_path)
    parties.release()
    parties.consent = ["again"]
    parties.restart()
    second = parties.new_plan()
    parties.agree(second)
    parties.release(plan=second)
    parties.consent = []
    parties.restart()
    parties.release(1)
    assert code(parties.agree, parties.new_plan()) == "samples-again"


def test_other_samples_are_other_data():
    parties = Parties(4)
    parties.release()
    parties.samples = {name: [f"{name} new".encode()] for name in parties.names}
    second = parties.new_plan()
    parties.agree(second)
    parties.release(plan=second)


def choose(parties, **changes):
    plan = parties.new_plan(choosing=True, **changes)
    parties.agree(plan)
    parties.release(plan=plan)


def test_runs_that_choose_come_before_the_run_over_exactly_the_same_samples():
    parties = Parties(4)
    choose(parties)
    choose(parties)
    parties.release()
    assert code(choose, parties) == "samples-again"


def test_a_sample_that_was_added_after_a_run_that_chose_is_no_difference():
    parties = Parties(4)
    choose(parties)
    add_photo(parties, parties.values)
    assert code(parties.agree, parties.new_plan()) == "samples-again"


def test_statistics_are_released_once_also_where_they_only_choose():
    parties = Parties(4, once=True)
    choose(parties, once=True)
    assert code(parties.agree, parties.new_plan(once=True)) == "samples-again"
    assert code(parties.agree, parties.new_plan()) == "samples-again"


@pytest.mark.parametrize("kind", ["closed", "trained"])
def test_a_ledger_of_the_first_version_is_read_and_still_refuses(kind, tmp_path):
    """It has digests of the samples of closed forms alone: of a trained method, any sample may have
    been in the sum.
    """
    folder = tmp_path / "p0"
    shutil.copytree(FIRST / kind, folder)
    ledger = Ledger(folder, "p0")
    (ledger._authority,) = ledger._content["federations"]  # the federation that it knew asks
    content = Parties(3).plan.content()
    known, new = (ledger.digests([one]) for one in (b"p0 0", b"new"))
    (old,) = ledger.plans
    goes_on = old, ledger.plans[old]["content"], ledger.digests([b"p0 0", b"p0 1", b"p0 2"])
    assert code(ledger.check, *goes_on, None, ()) == "samples-changed"
    ledger.check(*goes_on, None, ["again"])
    assert code(ledger.check, "00" * 32, content, known, None, ()) == "samples-again"
    if kind == "trained":
        assert code(ledger.check, "00" * 32, content, new, None, ()) == "samples-again"
    else:
        ledger.check("00" * 32, content, new, None, ())
    ledger.check("00" * 32, content, known, ["p0", "p1", "p2"], ["again"])
    assert (
        code(ledger.check, "00" * 32, content, known, ["p0", "p1"], ["again"]) == "roster-differs"
    )
    assert ledger.writes is None
    ledger.write({})
    assert Ledger(folder, "p0").writes == 1


def asked(parties, **changes):
    """Count answers once more about the samples of an earlier plan."""
    plan = parties.new_plan(once=True, sums=1, confidence="asking", **changes)
    parties.agree(plan)
    parties.release(plan=plan)


@pytest.mark.parametrize("announced", ["auto", "histograms"])
def test_answers_are_counted_once_after_a_plan_that_has_announced_it(announced, tmp_path):
    parties = Parties(4, tmp_path, once=True, confidence=announced)
    parties.release()
    asked(parties)
    assert code(asked, parties) == "samples-again"
    assert code(parties.agree, parties.new_plan(once=True, confidence=announced)) == "samples-again"


@pytest.mark.parametrize("said", ["none", "draws"])
def test_answers_are_not_counted_after_a_plan_that_has_not_announced_it(said):
    parties = Parties(4, once=True, confidence=said)
    parties.release()
    assert code(asked, parties) == "samples-again"


@pytest.mark.parametrize("consent", [(), ("again",)], ids=["", "consent"])
@pytest.mark.parametrize("signed", [False, True], ids=["first of all", "after a signature"])
def test_answers_are_not_counted_before_any_sum(signed, consent):
    """The attack: statistics that a coordinator makes up, and counts of what is answered by them,
    from owners who have agreed to no sum.
    """
    parties = Parties(4, once=True, confidence="auto")
    if not signed:
        parties.ledgers = {name: parties.ledger(name) for name in parties.names}
    parties.consent = consent
    for name in parties.names:
        parties.clients[name] = SecAggClient(
            parties.credentials[name], parties.ledgers[name], consent
        )
    if not consent:
        assert code(asked, parties) == "samples-again"
        return
    asked(parties)


def test_answers_are_not_counted_after_a_trained_run():
    """Its ``evaluation.confidence`` is ``auto``, as that of every run, and announces nothing."""
    parties = Parties(4, confidence="auto")
    parties.release()
    assert code(asked, parties) == "samples-again"


def test_a_party_that_missed_the_opening_of_a_sum_is_asked_about_it(tmp_path):
    parties = Parties(4, tmp_path, once=True, confidence="auto")
    rho, _ = parties.up_to_masked()
    parties.open(rho, names=parties.names[1:])
    parties.restart()
    asked(parties)


def test_a_party_without_samples_is_asked_with_the_others():
    parties = Parties(4, once=True, confidence="auto")
    parties.samples["p0"] = []
    parties.restart()
    parties.release()
    asked(parties)


def test_a_plan_that_asks_announces_nothing():
    parties = Parties(4, consent=("again",), once=True, confidence="asking")
    parties.release()
    parties.consent = ()
    parties.restart()
    assert code(asked, parties) == "samples-again"


def test_answers_about_other_samples_or_in_other_units_are_not_counted():
    parties = Parties(4, once=True, confidence="auto")
    parties.release()
    assert code(asked, parties, quantization="8") == "samples-again"
    parties.samples["p0"] = [*parties.samples["p0"], b"one more photo"]
    assert code(asked, parties) == "samples-again"


@pytest.mark.slow
@pytest.mark.parametrize("consent", [(), ("again",)], ids=["", "consent"])
@pytest.mark.parametrize("ways", [("plain", "masked"), ("masked", "plain")], ids="-".join)
def test_sums_in_clear_and_under_masks_are_sums_of_the_same_samples(ways, consent, tmp_path):
    """A trial in clear, and then a run under masks with one sample more: the difference of two
    totals would be that sample. Nor may others send in clear what hides a party in a masked total.
    """
    data = write_all(tmp_path / "data")
    enrol(tmp_path / "kits", NAMES)
    said = []

    def send(way):
        parties = {
            name: party(
                data / name,
                tmp_path / "state" / name,
                said,
                tmp_path / "kits" / name,
                way == "masked",
                consent,
            )
            for name in NAMES
        }
        asked = experiment(data, privacy__aggregation=way, evaluation__confidence="none")
        return host(asked, Recorder(parties), tmp_path / way, tmp_path / "kits")

    send(ways[0])
    shutil.rmtree(data / "north")
    write_party(data / "north", [*np.repeat((0, 1, 2), 6), 0], 1)  # the same, and one more
    if consent:
        assert send(ways[1]).result["sums_sha256"]
        return
    with pytest.raises(FedUnseenError):
        send(ways[1])
    for name in NAMES:  # north, whose samples are others, and those whose samples are the same
        messages = (tmp_path / "state" / name / "messages.log").read_text()
        assert "two sums" in messages or "other parties" in messages


@pytest.mark.slow
@pytest.mark.parametrize("consent", [(), ("again",)], ids=["", "consent"])
def test_a_sample_that_is_gone_in_a_run_in_clear_is_named(consent, tmp_path):
    """The attack: the total under masks without the sums in clear is the sample, and the word said
    nothing but that other parties' sums would show.
    """
    data = write_all(tmp_path / "data")
    shutil.rmtree(data / "north")
    write_party(data / "north", np.repeat(HELD["north"], 8), 1)
    enrol(tmp_path / "kits", NAMES)
    said = {name: [] for name in NAMES}

    def send(way, given=()):
        parties = {
            name: party(
                data / name,
                tmp_path / "state" / name,
                said[name],
                tmp_path / "kits" / name,
                way == "masked",
                given,
            )
            for name in NAMES
        }
        asked = experiment(data, privacy__aggregation=way, evaluation__confidence="none")
        run = host(asked, Recorder(parties), tmp_path / way, tmp_path / "kits").path
        return load_file(next(run.glob("checkpoints/*.safetensors")))

    before = send("masked")
    path = data / "north" / "features.npz"
    arrays = dict(np.load(path))
    gone = arrays["features"][0]
    np.savez(path, **{key: values[1:] for key, values in arrays.items()})
    rule = "another plan, and this party's samples have changed since that one, which had 1 sample "
    rule += "that this run lacks, and lacked 0 that it has"
    others = "show what the sums of other parties are, and the difference of two sums can reveal"
    if consent:
        now = send("plain", consent)
        count, total = (
            before[f"params/{key}"][0] - now[f"params/{key}"][0] for key in ("count", "total")
        )
        assert int(count) == 1
        assert np.corrcoef(total.numpy(), gone)[0, 1] > 0.99
        read = "\n".join(said["north"])
    else:
        with pytest.raises(FedUnseenError):
            send("plain")
        read = (tmp_path / "state" / "north" / "messages.log").read_text()
    assert [text for text in (rule, others) if text not in read] == []


def test_all_sums_that_a_run_in_clear_shows_are_named():
    parties = Parties(4)
    parties.release()
    ledger, told = parties.ledgers["p0"], []
    ledger.tell = told.append
    ledger.release("11" * 32, ledger.digests(OWN[1:]))
    samples = ledger.digests(OWN[:2])
    rules = [
        f"{had} that this run lacks, and lacked {lacked} that it has"
        for had, lacked in (("had 1 sample", 0), ("had 1 sample", 1))
    ]
    for removing, word in ((False, "again"), (True, "removal")):
        with pytest.raises(RefusedError, match=f"--consent {word}$") as refused:
            ledger.check_in_clear("a run", samples, removing, {"again", "removal"} - {word})
        assert refused.value.code == "samples-again"
        assert [rule in str(refused.value) for rule in rules] == [not removing] * 2
    ledger.check_in_clear("a run", samples, False, ["again"])
    (note,) = told
    assert [rule for rule in rules if rule not in note] == []
    ledger.check_in_clear("a run", ledger.digests([b"others"]), False, ())


def in_clear(ledger, *samples, run="trial"):
    """Let a run take samples in clear."""
    ledger.release_in_clear(run, ledger.digests(samples))
    ledger.in_clear = lambda: {run: True}


OWN = [b"p0 0", b"p0 1", b"p0 2"]  # the samples of p0
CLEAR = {
    "the same": (OWN, "run trial took exactly these samples in clear"),
    "fewer": (OWN[:2], "run trial took in clear 0 samples that this sum lacks, and lacked 1 that"),
    "more": ([*OWN, b"gone"], "run trial took in clear 1 sample that this sum lacks, and lacked 0"),
}


@pytest.mark.parametrize("what", CLEAR)
def test_the_difference_to_what_a_run_took_in_clear_is_named(what, tmp_path):
    parties = Parties(3, tmp_path)
    samples, said = CLEAR[what]
    in_clear(parties.ledgers["p0"], *samples)
    ledger = parties.ledgers["p0"] = parties.ledger("p0")  # after a restart
    ledger.compare_with(OWN)
    given = "00" * 32, parties.plan.content(), ledger.digests(OWN), None
    ledger.check(*given, ())  # no round was answered
    ledger.in_clear = lambda: {"trial": True}
    with pytest.raises(RefusedError, match=said) as refused:
        ledger.check(*given, ())
    assert refused.value.code == "samples-again"
    ledger.check(*given, (), masked=False)  # by file in clear, which hides nothing
    ledger.check(*given, ["again"])


def test_other_samples_than_a_run_took_in_clear_need_no_consent():
    parties = Parties(3)
    ledger, others = parties.ledgers["p0"], [b"another folder"]
    in_clear(ledger, *others)
    given = "00" * 32, parties.plan.content(), ledger.digests(OWN), None, ()
    ledger.compare_with([*OWN, *others])
    ledger.check(*given)
    ledger.compare_with(OWN)  # those may have been written anew since
    assert code(ledger.check, *given) == "samples-again"


GROWING = {"growth__name": "unknown", "partition__join": {"2": 2}, "strategy__rounds": 3}


class Greeted:
    """North, which a coordinator greets in clear; its class space grows without ``unseen``."""

    def __init__(self, folder, unseen=None):
        self.folder = folder
        self.data = write_all(folder / "data")
        enrol(folder / "kits", NAMES)
        more = {} if unseen is None else GROWING
        asked = experiment(
            self.data, privacy__aggregation="plain", evaluation__confidence="none", **more
        )
        header, self.tensors = greeting(asked, folder / "greeting")
        if unseen is not None:
            growing = header["growing"]
            growing["seen"] = [c for c in growing["seen"] if growing["classes"][c] != unseen]
        self.header = header

    def party(self, consent=()):
        """Return the party, in a process of its own."""
        kit, data = self.folder / "kits" / "north", self.data / "north"
        return party(data, self.folder / "state", [], kit, guarded=False, consent=consent)

    def greet(self, consent=()):
        message = pack({**self.header, "kind": "hello"}, self.tensors)
        return unpack(self.party(consent).answer(message))[0]

    def samples(self, ledger):
        raw = PartyData(self.data / "north").prepare(self.header, self.tensors).raw
        return ledger.digests(raw())


GREETINGS = pytest.mark.parametrize(
    "unseen", [None, "class 9", "class 0"], ids=["", "growing", "brings a class"]
)


@GREETINGS
def test_greetings_in_clear_count_no_samples_of_a_masked_sum(unseen, tmp_path):
    """The attack: a class space that grows, of which the party brings a class. The answer names the
    classes of so many samples as the coordinator asks for.
    """
    greeted = Greeted(tmp_path, unseen)
    ledger, plan = greeted.party().site.ledger, Parties(3).plan
    ledger.change_plan(plan.digest, content=plan.content(), opened=None)
    ledger.release(plan.digest, greeted.samples(ledger))
    assert greeted.greet() == {"error": "refused-data"}
    assert greeted.greet(["again"])["samples"] == 18


@GREETINGS
def test_a_masked_sum_of_samples_that_greetings_counted_needs_consent(unseen, tmp_path):
    """The attack: no round is asked for, and the counts are taken off a masked total."""
    greeted = Greeted(tmp_path, unseen)

    def check(consent=()):
        ledger = greeted.party().site.ledger
        content = Parties(3).plan.content()
        ledger.check("00" * 32, content, greeted.samples(ledger), None, consent)

    check()
    assert greeted.greet()["samples"] == 18
    with pytest.raises(RefusedError, match="took exactly these samples in clear") as refused:
        check()
    assert refused.value.code == "samples-again"
    check(["again"])


def test_an_owner_reads_all_that_a_consent_waives():
    """The attack: the sentence on a trial in clear came first, and the word that it asked for stood
    for the rule of one plan, too.
    """
    parties = Parties(4)
    parties.release()
    ledger, told = parties.ledgers["p0"], []
    ledger.tell = told.append
    in_clear(ledger, *OWN[:1])
    ledger.in_clear = lambda: {"trial": True, "before": False}
    given = "00" * 32, parties.plan.content(), ledger.digests(OWN), None
    rules = (
        "were released under another plan",
        "run trial took in clear 0 samples that this sum lacks, and lacked 2 that it has",
        "run before took samples in clear that an earlier version has not kept",
    )
    with pytest.raises(RefusedError) as refused:
        ledger.check(*given, ())
    for _ in range(3):  # as a plan is signed, and its sum asked for and opened
        ledger.check(*given, ["again"])
    (note,) = told
    for text in (str(refused.value), note):
        assert [rule for rule in rules if rule not in text] == []


def test_an_owner_reads_for_each_plan_what_a_consent_waives():
    """The attack: the word is in a site's configuration, and each plan shows one photo more. The
    text of the second such plan was that of the first.
    """
    parties = Parties(4, consent=["again"], once=True)
    told = []
    parties.ledgers["p0"].tell = told.append
    before = total(parties, parties.plan, parties.values)
    values = parties.values
    for photos in range(1, 4):
        values = add_photo(parties, values)
        parties.samples["p0"][-1] = f"photo {photos}".encode()
        plan = parties.new_plan(once=True)
        parties.agree(plan)
        now = total(parties, plan, values)
        assert (now - before).tolist() == PHOTO.tolist()
        before = now
        assert len(told) == photos
        for lacked in range(1, photos + 1):  # one line of each earlier plan
            assert f"which had 0 samples that this sum lacks, and lacked {lacked} that" in told[-1]
    told.clear()
    for rounds in range(1, 3):
        values = add_photo(parties, values)
        parties.samples["p0"][-1] = f"in round {rounds}".encode()
        parties.restart()
        total(parties, parties.plan, values, rounds)
        assert len(told) == rounds
        assert "changed since the round before" in told[-1]
    run = "in clear", parties.ledgers["p0"].digests(parties.samples["p0"]), False, ["again"]
    parties.ledgers["p0"].check_in_clear(*run)
    parties.ledgers["p0"].check_in_clear("another run", *run[1:])
    assert len(told) == 4


def test_no_reason_of_a_long_refusal_is_cut(tmp_path):
    """Nor the words at its end: an owner who gives them must have read what they waive."""
    data = write_all(tmp_path / "data")
    enrol(tmp_path / "kits", NAMES)
    said = {name: [] for name in NAMES}
    parties = {
        name: party(data / name, tmp_path / name, said[name], tmp_path / "kits" / name)
        for name in NAMES
    }
    ledger = parties["north"].site.ledger
    for count in range(1, 9):
        made_up = ledger.digests(f"gone {number}".encode() for number in range(count))
        ledger.release(f"{count:02}" * 32, made_up)
    with pytest.raises(FedUnseenError):
        host(experiment(data), Recorder(parties), tmp_path / "run", tmp_path / "kits")
    (refused,) = [text for text in said["north"] if "the owner must consent" in text]
    missing = [count for count in range(1, 9) if f"which had {count} sample" not in refused]
    assert (missing, refused.endswith("--consent again")) == ([], True)


@pytest.mark.slow
def test_rounds_in_clear_are_in_the_ledger_and_in_the_history(tmp_path):
    """Once for the same samples, however many rounds and runs take them."""
    data = write_all(tmp_path / "data")
    enrol(tmp_path / "kits", NAMES)

    def send(run, seed, kits=tmp_path / "kits"):
        parties = {
            name: party(data / name, tmp_path / "state" / name, [], kits / name, guarded=False)
            for name in NAMES
        }
        # a seed of its own, since two equal experiments of one second are one run
        more = {"evaluation__confidence": "none", "run__seed": seed}
        asked = experiment(data, privacy__aggregation="plain", **more)
        return host(asked, Recorder(parties), tmp_path / run, kits)

    for seed, run in enumerate(("first", "second")):
        send(run, seed)
    state = tmp_path / "state" / "north"
    assert len([*(state / "ledger").glob("clear-*.bin")]) == 1
    lines = [line for line in Releases(state).lines if line["kind"] == "round"]
    assert [line["in_clear"] for line in lines] == [True] * len(lines)
    assert [*checked(Releases(state)).ledger.in_clear().values()] == [True, True]
    history = state / "releases.jsonl"
    history.write_text(history.read_text().replace(', "in_clear": true', ""))  # an earlier version
    assert [*Releases(state)._in_clear().values()] == [False, False]
    (kept,) = (state / "ledger").glob("clear-*.bin")
    kept.unlink()
    with pytest.raises(RefusedError, match="missing or damaged"):
        Ledger(state / "ledger", None)


def test_a_greeting_that_comes_twice_counts_as_one(tmp_path):
    """Its answer was lost. The rounds after it were said to be of a version that kept no samples."""
    data = write_all(tmp_path / "data")
    enrol(tmp_path / "kits", NAMES)
    asked = experiment(data, privacy__aggregation="plain", evaluation__confidence="none")
    state = tmp_path / "state"
    one = party(data / "north", state, [], tmp_path / "kits" / "north", guarded=False)
    greeted = pack(*greeting(asked, tmp_path / "run"))
    assert one.answer(greeted) == one.answer(greeted)
    one.answer(pack({"kind": "round", "client": 0, "round": 0, "after": -1}, {}))
    lines = [line for line in Releases(state).lines if line["kind"] in ("hello", "round")]
    assert [line.get("in_clear") for line in lines] == [True, True]
    assert [*checked(Releases(state)).ledger.in_clear().values()] == [True]


@pytest.mark.parametrize("method", ["classifier", "gaussian", "ridge"])
def test_masked_sums_hold_out_no_share_of_a_class(method, tmp_path, monkeypatch):
    """With validation classes, a fifth of each other class is in none of them: by a removal from
    them, a coordinator read one sample of a class of seven, since the ledger held all as released.
    """
    data = write_all(tmp_path / "data")
    enrol(tmp_path / "kits", NAMES)
    for table in data.glob("*/classes.csv"):
        table.write_text(table.read_text().replace("class 9,seen", "class 9,validation"))
    asked = experiment(data, method, evaluation__confidence="none")
    space = load_data(asked, 0).for_selection(0).space.hashes()
    genuine = MaskedParties.hello

    def choosing(clients):
        header, tensors = genuine(clients)
        return {**header, "validation": [9], "space": space}, tensors

    monkeypatch.setattr(MaskedParties, "hello", choosing)
    parties = {
        name: party(data / name, tmp_path / name, [], tmp_path / "kits" / name) for name in NAMES
    }
    with suppress(FedUnseenError):
        host(asked, Recorder(parties), tmp_path / "run", tmp_path / "kits")
    allowed = method == "classifier"  # which shows no sums
    ledger = Ledger(tmp_path / "north" / "ledger", None)
    assert [bool(plan["opened"]) for plan in ledger.plans.values()] == [True] * allowed
    why = "method in closed form is not trained on validation classes"
    assert [why in str(each.error) for each in parties.values()] == [not allowed] * len(NAMES)
