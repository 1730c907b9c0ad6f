"""A coordinator cannot read single samples off a party's answer to a first look.

The masks of two answers to one plan are the same, and so is a signature of the same content. So an
answer has the same bytes exactly where nothing of what differs has left.
"""

import csv
import os
import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from fedunseen.core.errors import DataError, ExperimentError, QuorumError, RefusedError
from fedunseen.deploy.look import alike, question
from fedunseen.deploy.look.coordinator import Look, read_look
from fedunseen.deploy.look.findings import findings
from fedunseen.deploy.look.holdings import bounds_of, cells_of, holdings_of
from fedunseen.deploy.look.party import Looking
from fedunseen.deploy.look.question import FORM, LIMIT, PLAN, Question, make_plan
from fedunseen.deploy.offline import files
from fedunseen.deploy.offline.answered import ANSWERED
from fedunseen.deploy.releases import Releases
from fedunseen.deploy.secagg import ledger as ledgers
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
        (kits / name / ANSWERED).unlink(missing_ok=True)
        site = Site(state, Owner(folder, kits / name, consent))
        party = Credentials.load(kits / name)
        looking = Looking(plan, party, Ledger(state / "ledger"), site, plain=True)
        return looking.answer(holdings_of(folder), minimum)

    return answer


def came(*paths):
    """Return answers as a coordinator reads them."""
    return [(path, files.read(path, question.ANSWER, LIMIT, FORM)) for path in paths]


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
            read_look(plan, came(tmp_path / "answer"))
        return
    cells = answer.tensors["counts/cells"].numpy()
    assert not (cells % MINIMUM).any()
    assert {bounds_of(cell) for cell in np.flatnonzero(cells[0])} == {
        bounds_of(int(cells_of(np.array([30.0]))[0]))
    }
    part = read_look(plan, came(tmp_path / "answer")).parts[0]
    low, _, high = part.columns["age"].quantiles
    assert 20 < low < high < 40


def test_one_masked_answer_shows_nothing_and_all_show_the_sum(answered, plan, tmp_path):
    if not plan["masked"]:
        pytest.skip("in clear each answer shows its own")
    paths = []
    for name, count in zip(NAMES, (23, 31, 8), strict=True):
        (tmp_path / name).write_bytes(answered(patients(count=count), name, consent=("look",)))
        paths.append(tmp_path / name)
    part = read_look(plan, came(*paths)).parts[0]
    assert part.samples == {"flu": 20 + 30 + 5, "cold": 20 + 30 + 5}
    assert part.holders == {"flu": 3, "cold": 3}
    # another plan over the same rows has other masks
    before = files.read(paths[0], question.ANSWER, LIMIT, FORM).tensors["elements"].numpy()
    assert len(np.unique(before)) == len(before)
    forged = replace(plan, id=b"\1" * 32)
    with pytest.raises(RefusedError, match="another plan"):
        read_look(forged, came(*paths))


FOUR = (*NAMES, "east")
ASKED = Question(("flu", "cold"), ("age",))
RUN = {"dropouts": False, "removing": [], "once": False, "confidence": "none"}


class Sites:
    """Parties with their states, that a coordinator asks again and again."""

    def __init__(self, folder):
        self.folder, self.kits = folder, folder / "kits"
        enrol(self.kits, FOUR)
        self.count = 0

    def in_another_federation(self, parties):
        """Be asked by another authority from now on."""
        self.kits = self.folder / "other-kits"
        enrol(self.kits, parties)

    def plan(self, parties=FOUR, masked=True, asked=ASKED):
        self.count += 1
        path = self.folder / f"plan-{self.count}"
        enrolment, key = coordinator(self.kits / "coordinator")
        files.write(path, make_plan(enrolment, key, parties, masked, asked))
        return files.read(path, PLAN, LIMIT, FORM)

    def ledger(self, name="north"):
        ledger = Ledger(self.folder / name / "ledger")
        ledger.pin(Credentials.load(self.kits / name).enrolment, name)
        return ledger

    def looking(self, plan, consent, name):
        kit = self.kits / name
        site = Site(self.folder / name, Owner(self.folder, kit, ("look", *consent)))
        return Looking(plan, Credentials.load(kit), self.ledger(name), site, plain=True)

    def answer(self, plan, *consent, rows=None, name="north"):
        """Do what the command does, in its order."""
        looking = self.looking(plan, consent, name)
        if (content := looking.stored()) is not None:
            looking.record(content)
            return content
        return looking.answer(holdings_of(self.table(rows or patients())), MINIMUM)

    def table(self, rows, header=HEADER, name="data"):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        with open(folder / "t.csv", "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return folder


@pytest.fixture
def sites(tmp_path):
    return Sites(tmp_path)


def refusal(call, *args):
    with pytest.raises(RefusedError) as caught:
        call(*args)
    return caught.value.code


def test_the_difference_of_two_looks_is_no_partys_answer(sites):
    """A look of four less one of three is the fourth party's whole answer."""
    first = sites.answer(sites.plan())
    for consent in ((), ("again",)):
        assert refusal(sites.answer, sites.plan(NAMES), *consent) == "roster-differs"
    assert sites.ledger().rosters == [sorted(FOUR)]
    assert refusal(sites.answer, sites.plan()) == "look-again"
    assert sites.answer(sites.plan(), "again") != first


def test_nor_is_that_of_a_look_and_a_run(sites):
    sites.answer(sites.plan())
    given = "11" * 32, RUN, frozenset()
    assert refusal(sites.ledger().check, *given, NAMES, ["again"]) == "roster-differs"
    sites.ledger().check(*given, FOUR, [])
    allowed = {**RUN, "dropouts": True}
    sites.ledger().check("11" * 32, allowed, frozenset(), NAMES, ["dropouts"])


@pytest.mark.parametrize("by_file", [False, True], ids=["network", "file"])
def test_nor_is_that_of_a_run_and_a_look(sites, by_file):
    ledger = sites.ledger()
    more = {"content": RUN, "opened": None}
    if by_file:
        offline = {"masked": True, "answer": "00", "parties": list(FOUR)}
        ledger.change_plan("11" * 32, offline=offline, **more)
    else:
        ledger.change_plan("11" * 32, roster=FOUR, **more)
    assert refusal(sites.answer, sites.plan(NAMES), "again") == "roster-differs"
    sites.answer(sites.plan())


@pytest.mark.parametrize("first", ["look", "run"])
def test_nor_are_those_of_two_federations(first, sites):
    """Of both, three parties are the same people, and the fourth is asked for nothing in one."""
    if first == "look":
        sites.answer(sites.plan())
    else:
        sites.ledger().change_plan("11" * 32, roster=FOUR, content=RUN, opened=None)
    assert refusal(sites.answer, sites.plan(NAMES), "again") == "roster-differs"
    sites.in_another_federation(NAMES)
    every = ("again", "federations")
    for consent in ((), ("again",), every):
        assert refusal(sites.answer, sites.plan(NAMES), *consent) == "roster-differs"
    if first == "look":  # then a run of three
        given = "22" * 32, RUN, frozenset({b"a" * 20}), NAMES
        assert refusal(sites.ledger().check, *given, ["again"]) == "samples-again"
        assert refusal(sites.ledger().check, *given, every) == "roster-differs"


def test_equal_names_of_another_federation_need_their_own_word(sites):
    sites.answer(sites.plan())
    sites.in_another_federation(FOUR)
    assert refusal(sites.answer, sites.plan(), "again", "names") == "look-again"
    sites.answer(sites.plan(), "again", "federations")


def test_a_look_of_other_people_in_another_federation_needs_a_word(sites):
    sites.answer(sites.plan())
    sites.in_another_federation(("north", "a", "b"))
    plan = sites.plan(("north", "a", "b"))
    assert refusal(sites.answer, plan, "again") == "roster-differs"
    sites.answer(plan, "again", "federations")
    log = (sites.folder / "north" / "messages.log").read_text()
    assert "allowed by --consent federations: in another federation east, south, west" in log
    assert sites.ledger().rosters == [["a", "b", "north"]]


def by_file(masked=True, dropouts=False):
    """Return the record of a plan that was answered by file."""
    offline = {"masked": masked, "answer": "00", "parties": list(FOUR)}
    opened = {"k": 1, "rho": "", "reply": {}}
    return {"content": {**RUN, "dropouts": dropouts}, "opened": opened, "offline": offline}


LOOSE = {"content": {**RUN, "dropouts": True}, "opened": None}
SUMS = {
    "run": {"roster": FOUR, "content": RUN, "opened": None},
    "by file": by_file(),
    "with dropouts": LOOSE,  # beside what is kept with its samples
    "by file with dropouts": by_file(dropouts=True),
    "with dropouts, of an earlier version": {
        **LOOSE,
        "opened": {"k": 0, "rho": "", "reply": {"shares": dict.fromkeys(FOUR, "")}},
    },
}


@pytest.mark.parametrize("first", ["look", *SUMS])
def test_counts_in_clear_after_a_masked_sum_need_consent(first, sites):
    plain = sites.plan(NAMES, masked=False)
    if first == "look":
        sites.answer(sites.plan())
    else:
        if first == "with dropouts":
            sites.ledger().release("11" * 32, frozenset({b"a" * 32}), FOUR)
        sites.ledger().change_plan("11" * 32, **SUMS[first])
    assert refusal(sites.answer, plain) == "look-again"
    sites.answer(plain, "again")
    log = (sites.folder / "north" / "messages.log").read_text()
    assert "allowed by --consent again: masked sums of east, south, west and this party" in log


def answer_in_clear(sites, way):
    """Let samples of north leave in clear."""
    if way == "look":
        sites.answer(sites.plan(masked=False))
    elif way == "by file":
        sites.ledger().change_plan("11" * 32, **by_file(masked=False))
    else:
        kept = {"in_clear": True} if way == "run" else {}
        if kept:
            sites.ledger().release_in_clear("trial", frozenset({b"a" * 32}))
        Releases(sites.folder / "north").add("trial", "round", samples=1, **kept)


CLEAR = {
    "look": "a look counted this party's samples in clear",
    "by file": "this party sent sums in clear by file",
    "run": "run trial took samples in clear",
    "run of an earlier version": "run trial took samples in clear that an earlier version",
}


@pytest.mark.parametrize("first", CLEAR)
def test_a_masked_look_after_counts_or_sums_in_clear_needs_consent(first, sites):
    """Less what the others have sent in clear, its total is what the last party holds."""
    answer_in_clear(sites, first)
    plan = sites.plan()
    with pytest.raises(RefusedError, match=CLEAR[first]) as refused:
        sites.answer(plan)
    assert refused.value.code == "look-again"
    sites.answer(plan, "again")
    log = (sites.folder / "north" / "messages.log").read_text()
    assert f"allowed by --consent again: {CLEAR[first]}" in log


def test_a_masked_sum_after_a_look_in_clear_needs_consent(sites):
    given = "11" * 32, RUN, frozenset({b"a" * 32}), FOUR
    sites.ledger().check(*given, ())  # the control
    sites.answer(sites.plan(NAMES, masked=False))
    with pytest.raises(RefusedError, match=CLEAR["look"]) as refused:
        sites.ledger().check(*given, ())
    assert refused.value.code == "samples-again"
    sites.ledger().check(*given, ["again"])
    # what hides no party, or has no sample, needs no word
    sites.ledger().check(*given[:3], None, (), masked=False)
    sites.ledger().check_in_clear("run", given[2], False, ())
    sites.ledger().check(*given[:2], frozenset(), FOUR, ())


def test_a_masked_sum_that_a_full_disk_stopped_comes_before_no_look(sites, monkeypatch):
    """The attack: its samples were kept, so that the same plan was checked against nothing."""
    given = "11" * 32, RUN, frozenset({b"a" * 32}), FOUR
    written = ledgers._write

    def full(path, content):
        if path.name == "ledger.json":
            raise OSError(28, "No space left on device")
        written(path, content)

    ledger = sites.ledger()
    with monkeypatch.context() as patched:
        patched.setattr(ledgers, "_write", full)
        with pytest.raises(OSError, match="No space"):
            ledger.release(given[0], given[2], FOUR)
    assert [*(sites.folder / "north" / "ledger").glob("released-*")]
    sites.ledger().check(*given, ())  # an honest party comes again
    sites.answer(sites.plan(NAMES, masked=False))
    with pytest.raises(RefusedError, match=CLEAR["look"]) as refused:
        sites.ledger().check(*given, ())
    assert refused.value.code == "samples-again"


def test_a_look_in_clear_is_kept_before_it_leaves(sites, monkeypatch):
    def full(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Site, "wrote", full)
    with pytest.raises(OSError, match="No space"):
        sites.answer(sites.plan(masked=False))
    assert CLEAR["look"] in next(sites.ledger().taken_in_clear(None))


def test_an_owner_reads_all_that_the_words_for_a_look_allow(sites):
    """The attack: the first reason asked for a word that stood for the next one, too."""
    sites.answer(sites.plan())
    answer_in_clear(sites, "run")
    sites.in_another_federation(FOUR)
    reasons = "answered another look", CLEAR["run"], "in another federation east, south, west"
    with pytest.raises(RefusedError, match="--consent again --consent federations") as refused:
        sites.answer(sites.plan())
    assert [reason for reason in reasons if reason not in str(refused.value)] == []


def test_sums_in_clear_after_a_masked_look_need_consent(sites):
    samples = frozenset({b"a" * 20})
    given = "run", samples, False
    sites.ledger().check_in_clear(*given, ())
    sites.answer(sites.plan())
    asked = "11" * 32, RUN, samples, None
    for call in (
        lambda consent: sites.ledger().check_in_clear(*given, consent),
        lambda consent: sites.ledger().check(*asked, consent, masked=False),
    ):
        with pytest.raises(RefusedError, match="this party and east, south, west") as refused:
            call(())
        assert refused.value.code == "samples-again"
        call(["again"])


def test_a_roster_is_kept_before_an_answer_leaves(sites, monkeypatch):
    """A full disk between both leaves the roster, never the answer alone."""

    def full(*args, **more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Site, "wrote", full)
        with pytest.raises(OSError, match="No space"):
            sites.answer(sites.plan())
    assert sites.ledger().rosters == [sorted(FOUR)]
    assert refusal(sites.answer, sites.plan(NAMES)) == "roster-differs"


def test_only_a_masked_look_that_is_answered_has_a_roster(sites):
    looking = sites.looking(sites.plan(), (), "north")
    list(looking.listed(holdings_of(sites.table(patients())), MINIMUM))
    sites.answer(sites.plan(masked=False))
    assert sites.ledger().rosters == []
    sites.answer(sites.plan(NAMES), "again")
    assert sites.ledger().rosters == [sorted(NAMES)]


def test_a_sample_under_several_labels_is_one(sites):
    """A long table has a row for each of a patient's diagnoses, which lifts a cell above five."""
    names = [*("flu", "cold") * 20, "gout", "asthma", "angina", "rare"]
    base = [[f"{30 + i / 1e4:.4f}", "", name] for i, name in enumerate(names[:40])]
    patient = [["1e8", "lives alone", name] for name in names[-6:]]
    alone, with_patient = (
        holdings_of(sites.table(rows), "", ()) for rows in (base + patient[:1], base + patient)
    )
    for name in ("age", "note"):
        assert with_patient.columns[name].kinds == alone.columns[name].kinds
        assert (with_patient.columns[name].cells == alone.columns[name].cells).all()
    assert with_patient.columns["age"].cells[cells_of(np.array([1e8]))[0]] == 1
    assert with_patient.samples == {
        "flu": 21, "cold": 21, "gout": 1, "asthma": 1, "angina": 1, "rare": 1,
    }  # fmt: skip


def test_a_sample_of_several_splits_is_one(sites):
    rows = [["30", "flu", "train"], ["30", "flu", "val"], ["30", "flu", ""], ["31", "flu", "test"]]
    held = holdings_of(sites.table(rows, ["age", "label", "split"]))
    assert held.samples == {"flu": 1}
    assert held.columns["age"].kinds["numbers"] == 1
    assert held.columns.keys() == {"age"}


def test_a_plan_does_not_choose_the_column_of_the_classes(sites):
    """Otherwise the names of a plan count the values of any column."""
    towns = ("Belfast", "Derry")
    rows = [[str(i), towns[i % 2], ("flu", "cold")[i % 3 % 2]] for i in range(40)]
    folder = sites.table(rows, ["age", "residence", "diagnosis"])
    for known in (towns, ("flu", "cold"), [str(i) for i in range(40)]):
        with pytest.raises(DataError) as caught:
            holdings_of(folder, "", known)
        assert caught.value.code == "guessed-label"
        assert "--label" in str(caught.value)
    with pytest.raises(DataError) as caught:
        holdings_of(folder, "", ("gout",))
    assert caught.value.code == "no-label-column"
    looking = sites.looking(sites.plan(), (), "north")
    held = holdings_of(folder, "diagnosis", towns)
    assert held.samples == {"flu": 27, "cold": 13}
    assert "- the classes are what is in the column 'diagnosis'" in looking.listed(held, MINIMUM)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["x.png", "x.txt"])
def test_a_pipe_or_a_device_among_samples_is_refused(kind, name, tmp_path):
    """Reading one may never end."""
    for one in ("flu", "cold"):
        (tmp_path / one).mkdir()
        for i in range(MINIMUM):
            (tmp_path / one / f"{i}{name[1:]}").write_bytes(bytes([65 + i]) * 50)
    assert holdings_of(tmp_path).samples == {"flu": 5, "cold": 5}
    if kind == "pipe":
        os.mkfifo(tmp_path / "flu" / name)
    else:
        (tmp_path / "flu" / name).symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a pipe or a device"):
        holdings_of(tmp_path)


def signed_answer(sites, plan, name, classes=(), columns=()):
    """Write a party's answer of no samples, with names as it likes."""
    fields = {
        "party": name, "plan": plan.id.hex(), "masked": True, "minimum": 5,
        "classes": list(classes), "columns": list(columns),
    }  # fmt: skip
    length = question.question_of(plan).layout(len(plan["parties"])).length
    own = Credentials.load(sites.folder / "kits" / name)
    elements = {"elements": torch.zeros(length, dtype=torch.int64)}
    path = sites.folder / f"{name}.look"
    path.write_bytes(files.signed(question.ANSWER, fields, elements, own.enrolment, own.signing))
    return path


def test_names_of_one_answer_stall_no_reader(sites):
    """Each pair of 1,000 spellings of a name was a warning: half a million."""
    spelled = ["".join(signs) + "flue" for signs in product("-.+_", repeat=5)][: question.OWN_NAMES]
    plan = sites.plan()
    look = Look(ASKED, True, {"east": Question(spelled, ()), "west": Question((), ())}, {}, [])
    found = findings(look, 20)
    clashes = [each.what for each in found if each.code == "class-clash"]
    assert len(clashes) == 1
    assert clashes[0].endswith("and 995 more may be one class.")
    too_many = [f"{i}q" for i in range(question.OWN_NAMES + 1)]
    for names in ({"classes": too_many}, {"columns": too_many}):
        path = signed_answer(sites, plan, "east", **names)
        with pytest.raises(RefusedError, match="1,001 names"):
            files.read(path, question.ANSWER, LIMIT, FORM)
    path = signed_answer(sites, plan, "east", too_many[1:], too_many[1:])
    assert len(files.read(path, question.ANSWER, LIMIT, FORM)["classes"]) == question.OWN_NAMES


def test_few_warnings_of_a_kind_are_shown(sites):
    pairs = [f"{word}{sign}" for word in map(str, range(10**4, 10**4 + 80)) for sign in ("", "!")]
    look = Look(ASKED, True, {"east": Question(pairs, ())}, {}, [])
    found = [each for each in findings(look, 20) if each.code == "class-clash"]
    assert len(found) == 51
    assert found[-1].what.startswith("30 more")


def test_long_names_and_many_are_not_compared_letter_by_letter(monkeypatch):
    compared = []
    monkeypatch.setattr(alike, "alike_spellings", lambda names: compared.extend(names) or [])
    alike.alike([*("ab" * 31 for _ in range(5)), *(f"q{i}" for i in range(3_000))])
    assert compared == [f"q{i}" for i in range(2_000)]


def test_a_party_sends_the_first_of_many_names_and_says_so(sites):
    columns = [f"c{i}" for i in range(question.OWN_NAMES + 7)]
    folder = sites.table([["1"] * len(columns) + ["flu"]] * 2, [*columns, "label"], "wide")
    looking = sites.looking(sites.plan(), ("names",), "north")
    held = holdings_of(folder)
    (sites.folder / "answer").write_bytes(looking.answer(held, MINIMUM))
    answer = files.read(sites.folder / "answer", question.ANSWER, LIMIT, FORM)
    assert answer["columns"] == columns[: question.OWN_NAMES]
    said = next(line for line in looking.listed(held, MINIMUM) if "has room for few" in line)
    assert "all but 1000 of 1007 columns" in said
    wide = Question((), ["\U0001f993" * 200] * 500)  # twelve bytes for each letter in a header
    assert len(question.first_names(wide).columns) == 2**18 // 2404


def test_a_plan_of_too_many_names_is_refused_before_it_is_counted(sites, tmp_path):
    """An answer to 100,000 columns took 2.4 GB, and was larger than its reader reads."""
    names = [f"{i:x}" for i in range(question.MOST_NAMES + 1)]
    with pytest.raises(RefusedError, match="10,001 names"):
        sites.plan(asked=Question(names[:1], names[1:]))
    largest = sites.plan(asked=Question((), names[1:]))
    shapes = Question((), largest["columns"]).shapes.values()
    own = Question(names[1 : 1 + question.OWN_NAMES], names[1 : 1 + question.OWN_NAMES])
    numbers = sum(np.prod(shape) for shape in (*shapes, *own.shapes.values()))
    assert 8 * numbers + 2**20 < LIMIT
    (tmp_path / "classes.txt").write_text("\n".join(names) + "\n")
    with pytest.raises(ExperimentError, match="10,000") as caught:
        question.names_asked(tmp_path / "classes.txt", [])
    assert caught.value.code == "too-many-names"
    (tmp_path / "classes.txt").write_text("\n".join(names[1:]) + "\n")
    assert len(question.names_asked(tmp_path / "classes.txt", [])[0]) == question.MOST_NAMES
    with pytest.raises(ExperimentError, match="bytes of names"):
        question.names_asked(None, [f"{i}" + "\U0001f993" * 190 for i in range(400)])


def test_an_answer_that_a_full_disk_kept_from_leaving_is_a_second_one(sites, monkeypatch):
    """It was stored, and not in the history: another look was answered since."""

    def full(*args):
        raise OSError(28, "No space left on device")

    first = sites.plan()
    with monkeypatch.context() as broken:
        broken.setattr(Looking, "record", full)
        with pytest.raises(OSError, match="No space"):
            sites.answer(first)
    second = sites.answer(sites.plan(), rows=[*patients(), ["99", "", "flu"]])
    assert refusal(sites.answer, first) == "look-again"
    third = sites.answer(first, "again")
    assert third != second
    assert sites.answer(first) == third  # it has left: the same bytes need nothing


@pytest.mark.parametrize("masked", [True, False])
def test_an_answer_that_has_not_left_needs_todays_consent_and_minimum(masked, sites, monkeypatch):
    """It was stored with counts of single samples, and its line of the history was refused."""
    plan = sites.plan(masked=masked)
    folder = sites.table(patients(count=23))

    def given(minimum, *consent):
        site = Site(sites.folder / "north", Owner(folder, sites.folder / "kits/north", consent))
        own = Credentials.load(sites.folder / "kits" / "north")
        looking = Looking(plan, own, sites.ledger(), site, plain=True)
        return looking.given(folder, "label", minimum, lambda line: None)

    def refused(*args, **more):
        raise RefusedError("in use by another process", "history-in-use")

    with monkeypatch.context() as broken:
        broken.setattr(Site, "wrote", refused)
        assert refusal(given, 1, "look", "names") == "history-in-use"
    assert len(list(sites.folder.glob("north/look/*"))) == 1
    assert refusal(given, MINIMUM) == "look-consent"
    content, again = given(MINIMUM, "look")
    assert not again
    (sites.folder / "answer").write_bytes(content)
    answer = files.read(sites.folder / "answer", question.ANSWER, LIMIT, FORM)
    assert answer["minimum"] == MINIMUM
    if not masked:
        assert not (answer.tensors["counts/samples"].numpy() % MINIMUM).any()
    assert given(1, "look") == (content, True)  # the control: it has left
