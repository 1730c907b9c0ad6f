"""Removals of enough samples in all, whose totals before and after show single samples of a class.

With the owner's consent, or ``min_samples = 1``, each removal shows them, as it did before.
"""

import shutil
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.torch import load_file

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import FedUnseenError
from fedunseen.deploy.client_data import PartyData, Removal
from fedunseen.deploy.remote.masking import plan_facts
from fedunseen.deploy.remote.party import local_update
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.experiment.forget import write_removal
from fedunseen.experiment.own_samples import TAKEN
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


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = write_all(tmp_path_factory.mktemp("removed"))
    write_party(folder / "large", np.repeat(range(HELD), EACH), 5)
    return folder


def released(folder, greeted, min_samples=5, plan=PLAN):
    """Return the ledger of a party that has sent the sums of a folder under a plan."""
    ledger = Ledger()
    ready = PartyData(folder, masked=True, min_samples=min_samples).prepare(*greeted)
    ledger.change_plan(plan.digest, content=plan.content(), opened=None)
    ledger.release(plan.digest, ledger.digests(ready.raw()))
    return ledger


def removed(folder, greeted, ledger, samples, consent, min_samples, plan=REMOVAL):
    """Return the counts in the sums that a party sends for a removal, once its ledger agrees."""
    header, tensors = greeted
    header = {**header, "names": list(NAMES), "removing": [NAMES[0]]}
    agreed = Removal(samples, consent)
    held = PartyData(folder, masked=True, removal=agreed, min_samples=min_samples)
    ready = held.prepare(header, tensors)
    ready.check_removal(ledger, plan.digest)
    consented = ["removal"] if consent else []
    ledger.check(plan.digest, plan.content(), ledger.digests(ready.raw()), None, consented)
    reply, _ = local_update(ready.engine, 0, Instruction({}), {}, 0)
    return reply.update["count"][:HELD].tolist()


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


@pytest.mark.parametrize(
    ("lost", "samples", "enough"),
    [
        (range(4), range(EACH - 4), range(10)),  # all that is here of a class: 4 stay in the sums
        (range(EACH, EACH + 4), range(EACH), range(10)),  # of which class the lost ones are is open
        (range(14), range(4), range(5)),  # 4 of 10
    ],
)
def test_samples_that_were_deleted_since_count_as_left(lost, samples, enough, place, tmp_path):
    greeted = greeting(experiment(place), place / "run")
    ledger = released(place / "large", greeted)
    fewer = without(place / "large", tmp_path / "fewer", lost)
    given = fewer, greeted, ledger, with_last(samples, lost)[: len(samples) + SOME]
    assert code_of(removed, *given, False, 5) == "removal-of-few"
    assert removed(*given, True, 5)[0] == len(samples)
    given = fewer, greeted, ledger, with_last(enough, lost)[: len(enough) + SOME]
    assert removed(*given, False, 5)[0] == len(enough)


def test_samples_that_were_added_since_do_not_count_as_left(place, tmp_path):
    greeted = greeting(experiment(place), place / "run")
    before = without(place / "large", tmp_path / "before", range(4))
    ledger = released(before, greeted)
    given = place / "large", greeted, ledger, with_last(range(6, EACH))  # 18 of the 20 in the sums
    assert code_of(removed, *given, False, 5) == "removal-of-few"
    assert removed(*given, True, 5)[0] == EACH - 6
    enough = with_last(range(4, EACH - 6))
    assert removed(place / "large", greeted, ledger, enough, False, 5)[0] == EACH - 10


def test_what_another_plan_has_removed_is_not_left(place):
    greeted = greeting(experiment(place), place / "run")
    ledger = released(place / "large", greeted)
    given = place / "large", greeted, ledger
    first = PartyData(place / "large", masked=True, removal=Removal(with_last(range(10))))
    header = {**greeted[0], "names": list(NAMES), "removing": [NAMES[0]]}
    ready = first.prepare(header, greeted[1])
    ledger.change_plan(REMOVAL.digest, content=REMOVAL.content(), opened=None)
    ledger.release(REMOVAL.digest, ledger.digests(ready.raw()))
    second = replace(REMOVAL, nonce="33" * 16)
    some, rest = ([*range(10, end), *range(EACH, EACH + 12)] for end in (20, EACH))
    assert code_of(removed, *given, some, False, 5, second) == "removal-of-few"
    assert removed(*given, rest, False, 5, second)[0] == EACH - 10


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
