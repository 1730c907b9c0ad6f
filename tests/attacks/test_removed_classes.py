"""Removals of enough samples in all, whose totals before and after show single samples of a class.

With the owner's consent, or ``min_samples = 1``, each removal shows them, as it did before.
"""

import copy
import shutil
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import FedUnseenError, RefusedError
from fedunseen.data import Scaler
from fedunseen.deploy.client_data import PartyData, Removal
from fedunseen.deploy.remote.masking import plan_facts
from fedunseen.deploy.remote.party import local_update
from fedunseen.deploy.secagg.enrolment import in_memory
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.experiment.forget import write_removal
from fedunseen.experiment.own_samples import TAKEN
from fedunseen.methods.closed_form.statistics import unpacked
from fedunseen.strategies import Instruction
from small_federation import NAMES, experiment, greeting, write_all, write_party

EACH, HELD = 24, 6  # samples of each class at the party, and its classes
SPREAD = [EACH * c + i for c in range(HELD) for i in range(4)]  # 24 samples, 4 of each class
ALL_BUT_ONE = range(EACH - 1)  # of the first class
HALF = range(EACH - 4)  # 20 of the first class, so that 4 stay
ENOUGH = [*range(10), *range(EACH, EACH + 10)]  # 10 of each of two classes, so that 14 stay
WHOLE = range(EACH)  # the first class
SOME = 16  # of the last class, so that 8 stay

SUMMED = sorted({*TAKEN} - {"semantics", "prompt"})  # settings of data that features depend on

PLAN = Plan(*["00" * 32] * 3, "8", "00" * 32, {}, "00" * 32, 1, True, False, [], nonce="11" * 16)
REMOVAL = replace(PLAN, removing=[NAMES[0]], nonce="22" * 16)
ENROLMENT = in_memory(NAMES)[NAMES[0]].enrolment
OTHER_SUMS = {
    "noisy": {"privacy": "sample-level"},
    "choosing": {"choosing": True},
    "asking": {"confidence": "asking"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = write_all(tmp_path_factory.mktemp("removed"))
    write_party(folder / "large", np.repeat(range(HELD), EACH), 6)  # no feature is coarse
    return folder


def released(folder, greeted, min_samples=5, plan=PLAN):
    """Return the ledger of a party that has sent the sums of a folder under a plan."""
    ledger = Ledger()
    ready = PartyData(folder, masked=True, min_samples=min_samples).prepare(*greeted)
    ledger.change_plan(plan.digest, content=plan.content(), opened=None)
    ledger.release(plan.digest, ledger.digests(ready.raw()))
    return ledger


def taken(
    folder,
    greeted,
    ledger,
    samples,
    consent=False,
    min_samples=5,
    plan=REMOVAL,
    moments=(),
    before="",
):
    """Return the sums that a party sends for a removal, once its ledger agrees, which notes them."""
    header, tensors = greeted
    header = {**header, "names": list(NAMES), "removing": [NAMES[0]], "plan_before": before}
    agreed = Removal(samples, consent)
    held = PartyData(folder, masked=True, removal=agreed, min_samples=min_samples)
    held.consent = moments
    ready = held.prepare(header, tensors)
    ready.check_removal(ledger, plan.digest, plan.content())
    consented = ["removal"] if consent else []
    digests = ledger.digests(ready.raw())
    ledger.check(plan.digest, plan.content(), digests, None, consented)
    sums = sums_of(ready)
    ledger.change_plan(plan.digest, content=plan.content(), opened=None)
    ledger.release(plan.digest, digests)
    return sums


@pytest.mark.parametrize("consent", [False, True])
@pytest.mark.parametrize("method", ["classifier", "fedzsl"])
def test_a_removal_is_asked_in_closed_form_alone(method, consent, place, tmp_path):
    """A trained method has no rule of small classes, and would learn from what is to be removed."""
    greeted = greeting(experiment(place, method, data__features=["centre", "l2"]), tmp_path)
    header, tensors = greeted
    header = {**header, "names": list(NAMES), "removing": [NAMES[0]]}
    held = PartyData(place / "large", masked=True, removal=Removal(WHOLE, consent))
    with pytest.raises(RefusedError, match="by a method that is trained"):
        held.prepare(header, tensors)


@pytest.mark.parametrize("kind", ["statistics", "trained", "noisy", "choosing", "asking"])
def test_a_removal_is_of_released_sums_of_statistics_alone(kind, place, tmp_path):
    """A trained run's greeting may have the scalings of a closed form: the removal that follows
    would show sums that no plan has released.
    """
    greeted = header, tensors = greeting(experiment(place), place / "run")
    closed = plan_facts(header, tensors, ENROLMENT, True, 1)
    removal = replace(PLAN, **{**closed, "removing": [NAMES[0]]}, nonce="22" * 16)
    facts = closed | OTHER_SUMS.get(kind, {})
    if kind == "trained":
        theirs, _ = greeting(experiment(place, "classifier"), tmp_path)
        data = header["experiment"]["data"]
        greeted = {**theirs, "experiment": {**theirs["experiment"], "data": data}}, tensors
        facts = plan_facts(*greeted, ENROLMENT, False, 1)
    plan = replace(PLAN, **facts)
    removal = replace(removal, privacy=plan.privacy)
    assert (plan.scaling, plan.quantization) == (removal.scaling, removal.quantization)
    ledger = released(place / "large", greeted, plan=plan)
    given = place / "large", (header, tensors), ledger, WHOLE
    if kind != "statistics":
        assert code_of(partial(removed, *given, plan=removal)) == "removal-of-other-sums"
    # the positive controls: sums of statistics, or the owner's word
    consent = kind != "statistics"
    assert removed(*given, consent, plan=removal) == [EACH] + [0] * (HELD - 1)


def sums_of(ready):
    """Return what a party sends."""
    return local_update(ready.engine, 0, Instruction({}), {}, 0)[0].update


def removed(folder, greeted, ledger, *given, **more):
    """Return the counts in the sums that a party sends for a removal; its ledger stays as it is."""
    sums = taken(folder, greeted, copy.deepcopy(ledger), *given, **more)
    return sums["count"][:HELD].tolist()


def without(folder, out, rows):
    """Write a folder again without some of its samples."""
    shutil.copytree(folder, out)
    arrays = dict(np.load(folder / "features.npz"))
    np.savez(out / "features.npz", **{k: np.delete(v, rows, axis=0) for k, v in arrays.items()})
    return out


def written(place, samples, consent, min_samples, out):
    """Return the sums of the file that a party writes for a removal."""
    chosen = Experiment.from_dict(
        {
            "data": {"name": "folder", "root": str(place / "coordinator")},
            "method": {"name": "gaussian"},
        },
        {"partition.clients": 2, "evaluation.selection": "last", "evaluation.theory": False},
    )
    if not (place / "written").exists():
        run(chosen, place / "written")
    write_removal(load_run(place / "written"), place / "large", out, samples, consent, min_samples)
    return load_file(out)["sums/count"][:HELD].tolist()


@pytest.mark.parametrize("samples", [SPREAD, ALL_BUT_ONE, HALF])
@pytest.mark.parametrize("way", ["masked", "file"])
def test_a_removal_that_shows_few_samples_of_a_class_needs_consent(way, samples, place, tmp_path):
    greeted = greeting(experiment(place), place / "run")

    def send(consent, min_samples):
        if way == "masked":
            ledger = released(place / "large", greeted)
            return removed(place / "large", greeted, ledger, samples, consent, min_samples)
        out = tmp_path / f"{consent}-{min_samples}.safetensors"
        return written(place, samples, consent, min_samples, out)

    wanted = [4] * HELD if samples is SPREAD else [len(samples)] + [0] * (HELD - 1)
    with pytest.raises(FedUnseenError) as refused:
        send(False, 5)
    assert refused.value.code == "removal-of-few"
    assert send(True, 5) == send(False, 1) == wanted  # the positive controls


@pytest.mark.parametrize(("samples", "wanted"), [(ENOUGH, [10, 10]), (WHOLE, [EACH]), ((), None)])
def test_a_removal_of_enough_samples_of_each_class_needs_none(samples, wanted, place, tmp_path):
    counts = [EACH] * HELD if wanted is None else wanted + [0] * (HELD - len(wanted))
    greeted = greeting(experiment(place), place / "run")
    ledger = released(place / "large", greeted)
    assert removed(place / "large", greeted, ledger, samples, False, 5) == counts
    assert written(place, samples, False, 5, tmp_path / "file.safetensors") == counts


def code_of(call, *args):
    with pytest.raises(FedUnseenError) as refused:
        call(*args)
    return refused.value.code


def with_last(samples, lost=()):
    """Return samples with all of the last class: enough for a removal."""
    all_here = EACH * HELD - len(lost)
    return [*samples, *range(all_here - EACH, all_here)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "samples", "enough", "code"),
    [
        # all that is here of a class: 4 stay in the sums
        (range(4), range(EACH - 4), range(10), "removal-leaves"),
        # of which class the lost ones are is open
        (range(EACH, EACH + 4), range(EACH), range(10), "removal-leaves"),
        (range(14), range(4), range(5), "removal-of-few"),  # 4 of 10
    ],
)
def test_samples_that_were_deleted_since_count_as_left(
    lost, samples, enough, code, place, tmp_path
):
    greeted = greeting(experiment(place), place / "run")
    ledger = released(place / "large", greeted)
    fewer = without(place / "large", tmp_path / "fewer", lost)
    given = fewer, greeted, ledger, with_last(samples, lost)[: len(samples) + SOME]
    assert code_of(removed, *given, False, 5) == code
    if code == "removal-leaves":  # a consent of its own: the others would hide these no more
        assert code_of(removed, *given, True, 5) == code
    assert removed(*given, True, 5, moments=("leftovers",))[0] == len(samples)
    given = fewer, greeted, ledger, with_last(enough, lost)[: len(enough) + SOME]
    # what stays of the second moments is not known, unless the owner consents to show these
    assert code_of(removed, *given, False, 5) == "removal-of-few"
    assert removed(*given, moments=("moments",))[0] == len(enough)


@pytest.mark.parametrize(
    "what",
    [
        "nothing",
        "deleted",
        "deleted, all changed",
        "deleted, one changed",
        "copy deleted",
        "another class",
    ],
)
def test_a_party_that_leaves_whole_leaves_no_sample_alone_in_the_model(what, place, tmp_path):
    """The owner of a sample withdraws, it is deleted or corrected, and then its party leaves: the
    one sample that stays would be its class's total, in the model that all have.
    """
    at_first, later = place / "large", place / "large"
    if what == "copy deleted":
        at_first = shutil.copytree(place / "large", tmp_path / "twice")
        arrays = dict(np.load(at_first / "features.npz"))
        twice = {k: np.append(v, v[3:4], axis=0) for k, v in arrays.items()}
        np.savez(at_first / "features.npz", **twice)
    elif "deleted" in what:
        later = without(place / "large", tmp_path / "fewer", [3])
    if "changed" in what:  # samples that no sum knows hide none of those that stay
        some = slice(None) if "all" in what else slice(1)
        later = changed(later, lambda features: moved(features, some))
    elif what == "another class":
        later = shutil.copytree(place / "large", tmp_path / "corrected")
        arrays = dict(np.load(later / "features.npz"))
        arrays["labels"][3] = arrays["labels"][EACH]
        np.savez(later / "features.npz", **arrays)
    greeted = greeting(experiment(place), place / "run")
    ledger = released(at_first, greeted)
    for consent, min_samples in ((True, 5), (False, 1), (True, 1)):  # neither is about this
        given = later, greeted, ledger, (), consent, min_samples
        if what == "nothing":
            assert removed(*given) == [EACH] * HELD
            continue
        assert code_of(removed, *given) == "removal-leaves"
        if consent:
            left = sum(removed(*given, moments=("leftovers",)))
            assert left == EACH * HELD - (what.startswith("deleted"))


def moved(features, some):
    """Write some samples anew, as another processor would."""
    features[some] += 1e-6
    return features


def release_again(ledger, folder, greeted, plan, min_samples=5):
    """Let a ledger keep the sums of a second run, to which the owner has consented."""
    ready = PartyData(folder, masked=True, min_samples=min_samples).prepare(*greeted)
    ledger.change_plan(plan.digest, content=plan.content(), opened=None)
    ledger.release(plan.digest, ledger.digests(ready.raw()))
    return ledger


LATER = replace(PLAN, nonce="55" * 16)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [[3], range(EACH - 4)], ids=["one", "so that four are left out"])
def test_a_removal_is_judged_by_the_sums_that_it_names(lost, place, tmp_path):
    """A sample was deleted after a first run, and the second one, which the removal is from, never
    had it: nothing of it stays there.
    """
    large, greeted = place / "large", greeting(experiment(place), place / "run")
    fewer = without(large, tmp_path / "fewer", lost)
    ledger = release_again(released(large, greeted), fewer, greeted, LATER)
    given = fewer, greeted, ledger, ()
    refusal = "removal-leaves" if len(lost) == 1 else "removal-of-small-classes"
    for before in ("", PLAN.digest, "66" * 32, REMOVAL.digest):
        assert code_of(lambda before=before: removed(*given, before=before)) == refusal
    wanted = [EACH - 1 if len(lost) == 1 else 0] + [EACH] * (HELD - 1)
    assert removed(*given, before=LATER.digest) == wanted
    taken(*given, before=LATER.digest)
    twice = partial(taken, *given, plan=SECOND, before=LATER.digest)
    assert code_of(twice) == "removal-leaves"


@pytest.mark.parametrize(
    "change",
    [{"quantization": "16"}, {"scaling": "33" * 32}, {"once": False}, *OTHER_SUMS.values()],
    ids=str,
)
def test_a_removal_of_other_sums_than_those_that_it_names_is_judged_by_all(change, place, tmp_path):
    """It could be subtracted from the first sums instead, where the deleted sample would stay."""
    large, greeted = place / "large", greeting(experiment(place), place / "run")
    fewer = without(large, tmp_path / "fewer", [3])
    later = replace(LATER, **change)
    ledger = release_again(released(large, greeted), fewer, greeted, later)
    for consent in (False, True):  # that to removals is not about this
        given = fewer, greeted, ledger, (), consent
        asked = partial(removed, *given, before=later.digest)
        assert code_of(asked) == "removal-leaves"


def test_a_removal_of_samples_that_the_named_sums_lack_is_judged_by_all(place, tmp_path):
    large, greeted = place / "large", greeting(experiment(place), place / "run")
    later = without(large, tmp_path / "later", [*range(3, EACH)])  # three, which are left out
    ledger = release_again(released(large, greeted), later, greeted, LATER)
    fewer = without(large, tmp_path / "fewer", [3])
    asked = partial(removed, fewer, greeted, ledger, (), before=LATER.digest)
    assert code_of(asked) == "removal-leaves"


RARE, HAVE = 5, [EACH * c + 6 * (c > 0) for c in range(5)]  # a feature, and who has it: five
SECOND = replace(REMOVAL, nonce="33" * 16)


def halves(*classes):
    """Return half of the samples of classes, with all that have the rare feature."""
    return [EACH * c + i for c in classes for i in range(EACH // 2)]


@pytest.fixture
def rare(place, tmp_path):
    """A folder with a feature that one sample each of five classes has."""
    folder = shutil.copytree(place / "large", tmp_path / "rare")
    return changed(folder, lambda features: have(features, HAVE, [0.9, 0.8, 1.0, 0.7, 0.85]))


def have(features, who, values):
    """Let some samples alone have the rare feature."""
    features[:, RARE] = 0
    features[who, RARE] = values
    return features


def changed(folder, change):
    """Write a folder's features again."""
    arrays = dict(np.load(folder / "features.npz"))
    np.savez(folder / "features.npz", **{**arrays, "features": change(arrays["features"])})
    return folder


def with_another(folder, out, like, **values):
    """Write a folder again with a sample more, which is nearly another one."""
    shutil.copytree(folder, out)
    arrays = dict(np.load(folder / "features.npz"))
    new = arrays["features"][like] + 0.1 * (arrays["features"][like] != 0)
    new[RARE] = values.get("rare", new[RARE])
    more = {"features": new, "labels": arrays["labels"][like], "split": arrays["split"][like]}
    np.savez(out / "features.npz", **{k: np.concatenate([v, [more[k]]]) for k, v in arrays.items()})
    return out


def read_last(sums, *removals):
    """Return the sample that alone has the rare feature in what stays of sums."""
    square, total = (
        sums[name] - sum(removal[name] for removal in removals) for name in ("square", "total")
    )
    row = unpacked(square.long(), total.shape[1])[RARE].double()
    return (row / total[:, RARE].sum()).tolist()


def codes_of(folder, greeted, sample):
    """Return the whole numbers of a sample."""
    header, tensors = greeted
    steps = tuple(header["experiment"]["data"].get("features") or ("l2",))
    scaler = Scaler(steps, {k: v.numpy() for k, v in tensors.items() if k != "semantics"})
    features = np.load(folder / "features.npz")["features"]
    return scaler.codes(features[sample : sample + 1])[0][0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("consent", [False, True])
def test_two_removals_leave_no_sample_alone_in_the_sums(consent, rare, place):
    """The folder still has what the first one removed, and the sums have not."""
    greeted = greeting(experiment(place), place / "run")
    ledger = released(rare, greeted)
    sums = sums_of(PartyData(rare, masked=True).prepare(*greeted))
    assert code_of(taken, rare, greeted, ledger, halves(0, 1, 2, 3)) == "removal-of-few"
    first = taken(rare, greeted, ledger, halves(0, 1))  # three stay
    if not consent:
        given = rare, greeted, ledger, halves(2, 3), False, 5, SECOND
        assert code_of(taken, *given) == "removal-of-few"
        assert removed(rare, greeted, ledger, halves(2, 3, 4), False, 5, SECOND)[2] == EACH // 2
        return
    second = taken(rare, greeted, ledger, halves(2, 3), True, 5, SECOND)
    assert read_last(sums, first, second) == codes_of(rare, greeted, HAVE[4])


@pytest.mark.parametrize("consent", [False, True])
def test_a_sample_that_came_since_hides_none_that_stays_alone(consent, rare, place, tmp_path):
    greeted = greeting(experiment(place), place / "run")
    ledger = released(rare, greeted)
    sums = sums_of(PartyData(rare, masked=True).prepare(*greeted))
    more = with_another(rare, tmp_path / "more", EACH * 5 + 3, rare=0.95)
    given = more, greeted, ledger, halves(0, 1, 2, 3)
    if not consent:
        assert code_of(taken, *given) == "removal-of-few"
        assert removed(more, greeted, ledger, halves(0, 1))[:2] == [EACH // 2] * 2
        return
    assert read_last(sums, taken(*given, True)) == codes_of(rare, greeted, HAVE[4])


@pytest.mark.slow
def test_a_removal_hides_the_features_that_the_sums_hide(place, tmp_path):
    """Four of a class have a feature; a fifth that came since would show them in the removal.

    The others have values that rounding makes one.
    """
    greeted = greeting(experiment(place), place / "run")
    folder = shutil.copytree(place / "large", tmp_path / "four")
    small = np.random.default_rng(0).uniform(0, 1e-4, EACH * HELD)
    small[range(4)] = 0.6, 0.7, 0.8, 0.9
    small[EACH::3] = 1
    changed(folder, lambda features: have(features, range(EACH * HELD), small))
    ledger = released(folder, greeted)
    sums = sums_of(PartyData(folder, masked=True).prepare(*greeted))
    more = with_another(folder, tmp_path / "five", 3)
    assert sums_of(PartyData(more, masked=True).prepare(*greeted))["total"][0, RARE] != 0
    for consent in (False, True):
        difference = taken(more, greeted, copy.deepcopy(ledger), WHOLE, consent)["total"][0]
        assert torch.equal(difference, sums["total"][0])
    assert sums["total"][0, RARE] == 0


@pytest.mark.parametrize("since", [True, False])
def test_no_copy_of_a_sample_stays_in_the_sums_of_a_class(since, place, tmp_path):
    """It was saved again after the sums, and is removed twice; or before, and is removed once."""
    greeted = greeting(experiment(place), place / "run")
    once, twice = place / "large", tmp_path / "twice"
    shutil.copytree(once, twice)
    arrays = dict(np.load(once / "features.npz"))
    np.savez(twice / "features.npz", **{k: np.concatenate([v, v[3:4]]) for k, v in arrays.items()})
    before = once if since else twice
    ledger = released(before, greeted)
    sums = sums_of(PartyData(before, masked=True).prepare(*greeted))
    given = twice, greeted, ledger, [*WHOLE, EACH * HELD] if since else WHOLE
    assert code_of(taken, *given) == "removal-of-few"
    stays = sums["total"][0] - taken(*given, True)["total"][0]  # the positive control
    copy_of = np.array(codes_of(once, greeted, 3))
    assert stays.tolist() == (-copy_of if since else copy_of).tolist()


@pytest.mark.slow
def test_sums_whose_hidden_features_are_not_known_need_consent(place, tmp_path):
    """Removed samples were deleted, or several sums have the samples, with different others."""
    greeted = greeting(experiment(place), place / "run")
    large = place / "large"
    ledger = released(large, greeted)
    taken(large, greeted, ledger, halves(0, 5))
    fewer = without(large, tmp_path / "fewer", halves(0, 5))
    some = [row - EACH // 2 for row in halves(1, 2)]
    given = fewer, greeted, ledger, some
    assert code_of(removed, *given, False, 5, SECOND) == "removal-of-few"
    assert removed(*given, True, 5, SECOND)[1:3] == [EACH // 2] * 2
    assert removed(large, greeted, ledger, halves(1, 2), False, 5, SECOND)[1:3] == [EACH // 2] * 2
    ledger = released(large, greeted)
    more = with_another(large, tmp_path / "more", EACH * 5 + 3)
    both = PartyData(more, masked=True).prepare(*greeted)
    again = replace(PLAN, nonce="44" * 16)
    ledger.change_plan(again.digest, content=again.content(), opened=None)
    ledger.release(again.digest, ledger.digests(both.raw()))
    assert code_of(removed, more, greeted, ledger, halves(0, 1)) == "removal-of-few"
    assert removed(more, greeted, ledger, halves(0, 1), True)[:2] == [EACH // 2] * 2


def test_samples_that_were_added_since_do_not_count_as_left(place, tmp_path):
    greeted = greeting(experiment(place), place / "run")
    before = without(place / "large", tmp_path / "before", range(4))
    ledger = released(before, greeted)
    given = place / "large", greeted, ledger, with_last(range(6, EACH))  # 18 of the 20 in the sums
    assert code_of(removed, *given, False, 5) == "removal-of-few"
    assert removed(*given, True, 5)[0] == EACH - 6
    enough = with_last(range(4, EACH - 6))
    assert removed(place / "large", greeted, ledger, enough, False, 5)[0] == EACH - 10


@pytest.mark.slow
def test_what_another_plan_has_removed_is_not_left(place):
    greeted = greeting(experiment(place), place / "run")
    ledger = released(place / "large", greeted)
    given = place / "large", greeted, ledger
    taken(*given, with_last(range(10)))
    some, rest = ([*range(10, end), *range(EACH, EACH + 12)] for end in (20, EACH))
    assert code_of(removed, *given, some, False, 5, SECOND) == "removal-of-few"
    assert removed(*given, rest, False, 5, SECOND)[0] == EACH - 10


@pytest.mark.slow
def test_a_removal_with_another_number_than_the_sums_is_refused(place, tmp_path):
    """A class that was large enough for the sums, and is too small for the removal."""
    few = without(place / "large", tmp_path / "few", range(EACH - 6))  # 6 of the first class
    greeted = greeting(experiment(place), place / "run")
    ledger = released(few, greeted)
    given = few, greeted, ledger, ()
    assert code_of(removed, *given, False, 8) == "removal-of-small-classes"
    assert removed(*given, False, 5) == [6] + [EACH] * (HELD - 1)
    ledger = released(few, greeted, min_samples=8)
    assert removed(few, greeted, ledger, (), False, 8) == [0] + [EACH] * (HELD - 1)
    with pytest.raises(FedUnseenError, match="in no sum that this party's ledger"):
        removed(few, greeted, ledger, (), False, 5)


@pytest.mark.parametrize(
    "change",
    [{"quantization": "16"}, {"scaling": "33" * 32}, {"privacy": "sample-level"}],
    ids=lambda change: next(iter(change)),
)
def test_a_removal_of_other_sums_than_the_released_ones_needs_consent(change, place):
    greeted = greeting(experiment(place), place / "run")
    ledger = released(place / "large", greeted)
    given = place / "large", greeted, ledger, WHOLE
    other = replace(REMOVAL, **change)
    assert code_of(removed, *given, False, 5, other) == "removal-of-other-sums"
    assert removed(*given, True, 5, other)[0] == EACH


def test_a_plan_that_adapts_does_not_pass_for_one_that_asks_about_confidence(place):
    (header, tensors), enrolment = greeting(experiment(place), place / "run"), Mock(digest="")
    given = header["experiment"]
    for unlabelled, expected in ((False, "asking"), ("summed", "none")):
        changed = {
            **given,
            "data": {**given["data"], "unlabelled": unlabelled},
            "evaluation": {**given["evaluation"], "confidence": "asking"},
        }
        facts = plan_facts({**header, "experiment": changed}, tensors, enrolment, True, 1)
        assert facts["confidence"] == expected


@pytest.mark.parametrize(
    "change",
    ["step", "bits", "privacy", "encoder", "clip_norm", "min_samples", *SUMMED],
)
def test_a_plan_says_how_its_sums_are_scaled_and_whether_they_have_noise(change, place):
    (header, tensors), enrolment = greeting(experiment(place), place / "run"), Mock(digest="")
    facts = plan_facts(header, tensors, enrolment, True, 1)
    given = header["experiment"]
    if change == "step":
        tensors = {**tensors, "quantize.step": tensors["quantize.step"] * 2}
    elif change == "bits":
        given = {**given, "data": {**given["data"], "quantization": 16}}
    elif change == "encoder":
        given = {**given, "encoder": {**given["encoder"], "model": "owner/other"}}
    elif change in SUMMED:
        given = {**given, "data": {**given["data"], change: ["another"]}}
    elif change in ("clip_norm", "min_samples"):
        given = {**given, "method": {**given["method"], change: 3.0}}
    else:
        given = {**given, "privacy": {**given["privacy"], "name": "sample-level"}}
    changed = plan_facts({**header, "experiment": given}, tensors, enrolment, True, 1)
    assert any(facts[name] != changed[name] for name in ("scaling", "quantization", "privacy"))
