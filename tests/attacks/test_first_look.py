"""A coordinator cannot read single samples off a party's answer to a first look.

The masks of two answers to one plan are the same, and so is a signature of the same content. So an
answer has the same bytes exactly where nothing of what differs has left.
"""

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedunseen.core.errors import QuorumError, RefusedError
from fedunseen.deploy.look import question
from fedunseen.deploy.look.coordinator import read_look
from fedunseen.deploy.look.holdings import bounds_of, cells_of, holdings_of
from fedunseen.deploy.look.party import Looking
from fedunseen.deploy.look.question import FORM, LIMIT, PLAN, Question, make_plan
from fedunseen.deploy.offline import files
from fedunseen.deploy.secagg.enrolment import Credentials, coordinator, enrol
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.site import Owner, Site

NAMES = ("north", "south", "west")
HEADER = ["age", "note", "label"]
MINIMUM = 5


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits")
    enrol(folder, NAMES)
    return folder


@pytest.fixture(params=[True, False], ids=["masked", "plain"])
def plan(request, kits, tmp_path):
    """A plan that asks for all that a party may have."""
    enrolment, key = coordinator(kits / "coordinator")
    asked = Question(("flu", "cold", "rare"), ("age", "note"))
    files.write(tmp_path / "plan", make_plan(enrolment, key, NAMES, request.param, asked))
    return files.read(tmp_path / "plan", PLAN, LIMIT, FORM)


@pytest.fixture
def answered(plan, kits, tmp_path):
    """Return the bytes that a party of these rows sends, with all that its owner may agree to."""

    def answer(rows, name="north", minimum=MINIMUM, consent=("look", "names")):
        folder = tmp_path / "data"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with open(folder / "t.csv", "w", newline="") as file:
            csv.writer(file).writerows([HEADER, *rows])
        state = tmp_path / "state"
        shutil.rmtree(state, ignore_errors=True)
        site = Site(state, Owner(folder, kits / name, consent))
        party = Credentials.load(kits / name)
        looking = Looking(plan, party, Ledger(state / "ledger"), site, agrees_to_clear=True)
        return looking.answer(holdings_of(folder), minimum)

    return answer


def patients(last=(), count=23):
    """Return rows of two classes; the ``last`` ones stand in place of as many."""
    rows = [
        [f"{30 + i % 3 / 100 + i / 1e4:.4f}", "", ("flu", "cold")[i % 2]] for i in range(2 * count)
    ]
    return [*rows[: len(rows) - len(last)], *last]


ALONE = {
    "a far value": (["1e8", "", "cold"], ["31.0", "", "cold"]),
    "two far values": (["1e8", "", "cold"], ["-7", "", "cold"]),
    "a class of one sample": (["30.5", "", "rare"], ["30.5", "", "cold"]),
    "a label of one row": (["30.5", "", "Fabry disease"], ["30.5", "", "cold"]),
    "two labels of one row": (["30.5", "", "Fabry disease"], ["30.5", "", "Pompe disease"]),
    "a text": (["30.5", "lives alone", "cold"], ["30.5", "", "cold"]),
    "a row without a label": (["30.5", "", ""], ["30.5", "", "cold"]),
    "a text among numbers": (["very old", "", "cold"], ["30.5", "", "cold"]),
    "a missing cell": (["", "", "cold"], ["30.5", "", "cold"]),
}


@pytest.mark.parametrize(("one", "other"), ALONE.values(), ids=ALONE)
def test_a_sample_alone_changes_no_byte(one, other, answered):
    assert answered(patients([one])) == answered(patients([other]))
    for text in (b"Fabry", b"Pompe", b"alone", b"very old"):
        assert text not in answered(patients([one]))


def test_an_owner_who_sends_single_samples_sends_them(answered):
    """Positive control: the same comparison finds what leaves."""
    for one, other in ALONE.values():
        assert answered(patients([one]), minimum=1) != answered(patients([other]), minimum=1)


def test_rows_of_a_group_leave_together(answered):
    rare = [[f"9{i}.0", "", "rare"] for i in range(MINIMUM)]
    assert answered(patients(rare)) != answered(patients(rare[1:]))


def test_the_same_row_saved_again_is_one(answered):
    """Copies would lift a single sample above the minimum."""
    copies = [["99.0", "", "rare"]] * 8
    assert answered([*patients(), *copies]) == answered([*patients(), copies[0]])
    assert answered([*patients(), *copies]) == answered(patients())


def test_no_cell_of_few_rows_is_in_clear(answered, plan, tmp_path):
    rows = patients([["1e8", "", "cold"], ["1e-5", "", "cold"], ["-4", "", "cold"]])
    content = answered(rows)
    (tmp_path / "answer").write_bytes(content)
    answer = files.read(tmp_path / "answer", question.ANSWER, LIMIT, FORM)
    if plan["masked"]:
        with pytest.raises(QuorumError, match="no answer of south"):
            read_look(plan, [tmp_path / "answer"])
        return
    cells = answer.tensors["counts/cells"].numpy()
    assert not (cells % MINIMUM).any()
    assert {bounds_of(cell) for cell in np.flatnonzero(cells[0])} == {
        bounds_of(int(cells_of(np.array([30.0]))[0]))
    }
    part = read_look(plan, [tmp_path / "answer"]).parts[0]
    low, _, high = part.columns["age"].quantiles
    assert 20 < low < high < 40


def test_one_masked_answer_shows_nothing_and_all_show_the_sum(answered, plan, tmp_path):
    if not plan["masked"]:
        pytest.skip("in clear each answer shows its own")
    paths = []
    for name, count in zip(NAMES, (23, 31, 8), strict=True):
        (tmp_path / name).write_bytes(answered(patients(count=count), name, consent=("look",)))
        paths.append(tmp_path / name)
    part = read_look(plan, paths).parts[0]
    assert part.samples == {"flu": 20 + 30 + 5, "cold": 20 + 30 + 5}
    assert part.holders == {"flu": 3, "cold": 3}
    # another plan over the same rows has other masks
    before = files.read(paths[0], question.ANSWER, LIMIT, FORM).tensors["elements"].numpy()
    assert len(np.unique(before)) == len(before)
    forged = replace(plan, id=b"\1" * 32)
    with pytest.raises(RefusedError, match="another plan"):
        read_look(forged, paths)
