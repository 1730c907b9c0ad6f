"""A removal of enough samples of each class, one of which alone is far, or has a cell: of the class
that is not few, so that the sums show it, and of what is removed, or of what stays, it is.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_removed_classes import EACH, HELD, code_of, released, sums_of, taken
from test_stand_ins import RARE
from test_stated_columns import AGE, HEADER, LEVELS, rows_of
from test_tables_again import experiment as of_table
from test_tables_again import released as released_rows
from test_tables_again import write_table

from fedunseen import Experiment, load_run, run
from fedunseen.deploy.client_data import PartyData, Removal
from fedunseen.experiment.forget import write_removal
from small_federation import NAMES, experiment, greeting, write_all, write_party

SPLIT = range(3)  # classes of which half is removed
REMOVED = [EACH * c + i for c in SPLIT for i in range(EACH // 2)]
FAR = (60, 66, 71, 80, 88)  # with one more a class has six


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("features"))


def with_far(place, folder, alone):
    """Write a folder whose classes have six far numbers of a feature that is nearly 0 otherwise:
    one is removed and five stay, or the reverse.
    """
    write_party(folder, np.repeat(range(HELD), EACH), 5)
    arrays = dict(np.load(folder / "features.npz"))
    small = np.random.default_rng(3).uniform(-0.4, 0.4, len(arrays["labels"]))
    for c in SPLIT:
        one, others = (0, EACH // 2) if alone == "removed" else (EACH // 2, 0)
        small[EACH * c + one] = 47 + 3 * c
        small[EACH * c + others + 1 : EACH * c + others + 6] = FAR
    arrays["features"][:, RARE] = small
    np.savez(folder / "features.npz", **arrays)
    return folder


def units(tensors):
    """Return a coordinator's scaling that rounds to whole numbers."""
    ones, zeros = torch.ones(8), torch.zeros(8)
    return tensors | {
        "0.mean": zeros, "0.deviation": ones, "quantize.step": ones, "quantize.offset": zeros,
    }  # fmt: skip


@pytest.mark.parametrize("consent", [False, True])
@pytest.mark.parametrize("alone", ["removed", "left"])
@pytest.mark.parametrize("way", ["masked", "plain", "file"])
def test_a_removal_shows_no_far_sample_of_few(way, alone, consent, place, tmp_path):
    folder = with_far(place, tmp_path / "far", alone)
    if way == "file":
        total, before = by_file(place, folder, tmp_path, consent)
    else:
        masked = {} if way == "masked" else {"privacy__aggregation": "plain"}
        chosen = experiment(place, data__features=["standard"], **masked)
        header, tensors = greeting(chosen, tmp_path / "run")
        greeted = header, units(tensors)
        held = PartyData(folder, masked=way == "masked")
        held.consent = ("moments",)  # that rule is another one
        before = sums_of(held.prepare(*greeted))["total"]
        total = of_removal(way, folder, greeted, consent)
    if not consent:
        assert total is None
        return
    one = (total if alone == "removed" else before - total)[:3, RARE]
    assert one.tolist() == [47, 50, 53]


def of_removal(way, folder, greeted, consent):
    """Return the total that a party sends for a removal; None if it refuses."""
    if way == "masked":
        given = folder, greeted, released(folder, greeted), REMOVED, consent
        if consent:
            return taken(*given, moments=("moments",))["total"]
        return code_of_few(taken, *given, moments=("moments",))
    header, tensors = greeted
    header = {**header, "names": list(NAMES), "removing": [NAMES[0]]}
    held = PartyData(folder, removal=Removal(REMOVED, consent))
    held.consent = ("moments",)
    if consent:
        return sums_of(held.prepare(header, tensors))["total"]
    return code_of_few(held.prepare, header, tensors)


def by_file(place, folder, tmp_path, consent):
    """Return the totals in the file of a removal, None if it is refused, and in one of all."""
    tree = {
        "data": {
            "name": "folder", "root": str(place / "coordinator"), "features": [],
            "bounds": [[-127, 127]],
        },
        "method": {"name": "gaussian"},
    }  # fmt: skip
    small = {
        "partition.clients": 2, "evaluation.selection": "last", "evaluation.theory": False,
    }  # fmt: skip
    run(Experiment.from_dict(tree, small), tmp_path / "run")
    stored = load_run(tmp_path / "run")
    write_removal(stored, folder, tmp_path / "all", (), False, 5, moments=True)
    given = stored, folder, tmp_path / "some", REMOVED, consent, 5, True
    before = load_file(tmp_path / "all")["sums/total"]
    if consent:
        write_removal(*given)
        return load_file(tmp_path / "some")["sums/total"], before
    return code_of_few(write_removal, *given), before


def code_of_few(call, *given, **more):
    """Return None once the call has refused a removal of few."""
    assert code_of(lambda: call(*given, **more)) == "removal-of-few"


@pytest.mark.parametrize("whole", [False, True])
def test_a_removal_shows_no_sum_of_few_far_samples(whole, place, tmp_path):
    """Of twelve, five differ from the others: two by 47 and 50, and three by 1."""
    folder = write_party(tmp_path / "far", np.repeat(range(HELD), EACH), 5)
    arrays = dict(np.load(folder / "features.npz"))
    arrays["features"][:, RARE] = np.random.default_rng(3).uniform(-0.4, 0.4, EACH * HELD)
    differ = range(EACH, EACH + 5) if whole else range(5)  # of a class that is parted, or whole
    arrays["features"][differ, RARE] = 47, 50, 1, 1, 1
    arrays["features"][differ[0] + 12 : differ[0] + 17, RARE] = FAR
    np.savez(folder / "features.npz", **arrays)
    header, tensors = greeting(experiment(place, data__features=["standard"]), tmp_path / "run")
    greeted = header, units(tensors)
    removed = [*range(EACH, 2 * EACH)] if whole else [*range(12), *range(EACH * 5, EACH * 6)]
    given = folder, greeted, released(folder, greeted), removed
    if whole:
        assert taken(*given, moments=("moments",))["count"][1] == EACH
        return
    code_of_few(taken, *given, moments=("moments",))
    assert taken(*given, True, moments=("moments",))["total"][0, RARE] == 100


@pytest.mark.parametrize("whole", [False, True])
def test_a_removal_of_whole_classes_needs_no_consent(whole, place, tmp_path):
    folder = with_far(place, tmp_path / "far", "removed")
    header, tensors = greeting(experiment(place, data__features=["standard"]), tmp_path / "run")
    greeted = header, units(tensors)
    some = range(EACH * len(SPLIT)) if whole else [*range(12), *range(EACH * 5, EACH * 6)]
    given = folder, greeted, released(folder, greeted), some
    if whole:
        assert taken(*given)["count"][:HELD].tolist() == [EACH] * 3 + [0] * 3
    else:
        assert code_of(taken, *given) == "removal-of-few"


CELLS = {
    "number": ("fare", "84.16", "0", {"kind": "number", "bounds": [0, 127]}),
    "date": (
        "boarded",
        "1990-05-17",
        "1990-01-01",
        {"kind": "date", "bounds": ["1990-01-01", "1990-12-31"]},
    ),
    "category": ("port", "Belfast", "Cherbourg", {"kind": "category", "values": ["Belfast"]}),
    "boolean": ("crew", "yes", "no", {"kind": "boolean"}),
    "gap": ("fare", "", "30", {"kind": "number", "bounds": [0, 127], "fill": 0, "indicator": True}),
}


@pytest.mark.parametrize("consent", [False, True])
@pytest.mark.parametrize("alone", ["removed", "left"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_removal_shows_no_cell_of_few_rows(cell, alone, consent, tmp_path):
    """A class has it six times: one of the rows is removed and five stay, or the reverse."""
    column, rare, usual, stated = CELLS[cell]
    one, others = (0, 20) if alone == "removed" else (20, 0)
    which = {one, *range(others + 1, others + 6)}
    cells = [rare if i in which else usual for i in range(40)]
    folder = tmp_path / "north"
    write_table(folder, [*rows_of("A", **{column: cells}), *rows_of("B")], HEADER)
    columns = [{"name": column, **stated}, AGE]
    greeted = greeting(of_table(tmp_path / "coordinator", columns), tmp_path / "run")
    held = PartyData(folder, {"data.label": "deck"}, masked=True)
    held.consent = ("moments",)
    ready = held.prepare(*greeted)
    before, ledger = sums_of(ready)["total"], released_rows(ready)
    header = {**greeted[0], "names": list(NAMES), "removing": [NAMES[0]]}
    held = PartyData(
        folder, {"data.label": "deck"}, masked=True, removal=Removal(range(20), consent)
    )
    held.consent = ("moments",)
    ready = held.prepare(header, greeted[1])
    if not consent:
        assert code_of(ready.check_removal, ledger, "11" * 32) == "removal-of-few"
        return
    ready.check_removal(ledger, "11" * 32)
    total = sums_of(ready)["total"]
    shown = (total if alone == "removed" else before - total)[0]
    place = 1 if cell == "gap" else 0
    high = {"number": 168.32 - LEVELS, "date": round(136 / 364 * 254) - LEVELS}.get(cell, LEVELS)
    assert abs(shown[place] - (high - 19 * LEVELS)) <= 1
