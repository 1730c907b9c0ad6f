"""The same rows of a table, asked for under other columns: the difference of both sums is a row.

What a coordinator states changes the features of a row, and never which row it is.
"""

from dataclasses import replace

import numpy as np
import pytest
from test_removed_classes import PLAN as RELEASED
from test_removed_classes import REMOVAL

from fedunseen import Experiment
from fedunseen.core.errors import QuorumError, RefusedError
from fedunseen.data.benchmarks.image_folder import ImageFolder
from fedunseen.data.benchmarks.table import TableBenchmark
from fedunseen.data.columns import Column
from fedunseen.data.columns.rows import row_digests
from fedunseen.data.columns.treatment import CellError, encode, text_of
from fedunseen.data.io.tables import open_table
from fedunseen.deploy import client_data
from fedunseen.deploy.client_data import PartyData, Removal, raw_samples
from fedunseen.deploy.remote.party import Party, local_update
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.site import Owner, Site
from fedunseen.experiment.party_sums import check_stated
from fedunseen.strategies import Instruction
from masked_parties import Parties
from mixed_tables import (
    DECKS,
    HEADER,
    arrow_table,
    describe,
    passengers,
    save_as_datasets_does,
    write_csv,
)
from small_federation import MASKED, NAMES, Recorder, greeting, host

ROWS = [row for row in passengers(360) if row[-1] in "AB"]
NEW = ["999", "PC 1", "41.7", "93.25", "Cherbourg", "no", "1912-04-04", "false", "A"]
AGE, FARE = HEADER.index("age"), HEADER.index("fare")
ENDS = {"age": (20, 70), "fare": (0, 100)}
COLUMNS = [{"name": name, "kind": "number", "bounds": ENDS[name]} for name in ENDS]


def experiment(folder, columns=COLUMNS, **data):
    """Return the experiment of a coordinator that states columns; its own table is there."""
    if not folder.exists():
        describe(folder)
        tests = [[*row, "test"] for row in passengers(60, seed=1)]
        write_csv(folder / "people.csv", tests, [*HEADER, "split"])
    tree = {
        "data": {
            "name": "table", "root": str(folder), "label": "deck", "columns": columns, "part": True,
            "features": ["min-max"], "bounds": [[0, 1]], **data,
        },
        "method": {"name": "gaussian"},
        "strategy": {"name": "fedavg", "rounds": 1, "weights": "uniform"},
        "partition": {"clients": len(NAMES)},
        "evaluation": {"theory": False, "embedding": False, "confidence": "none"},
        "engine": {"name": "nvflare", "mode": "deployment", "patience": 0.2},
        "run": {"device": "cpu"},
    }  # fmt: skip
    return Experiment.from_dict(tree, MASKED)


def wider(by):
    """Return the columns with bounds that are a little wider."""
    return [
        {**column, "bounds": (low, high + by)}
        for column, (low, high) in zip(COLUMNS, ENDS.values(), strict=True)
    ]


CHANGES = {
    "bounds": {"columns": wider(1e-4)},
    "fewer columns": {"columns": COLUMNS[1:]},
    "another kind": {"columns": [{"name": "port", "kind": "category", "values": ["Cherbourg"]}]},
    "missing": {"missing": ["", "41.7"]},
    "a further column": {"columns": [*COLUMNS, {"name": "crew", "kind": "boolean"}]},
}


def write_table(folder, rows, header=HEADER):
    describe(folder)
    write_csv(folder / "people.csv", rows, header)
    return folder


def ready_for(folder, tmp_path, **changes):
    """Return a party that is ready for a coordinator's columns."""
    greeted = greeting(experiment(tmp_path / "coordinator", **changes), tmp_path / "run")
    return PartyData(folder, {"data.label": "deck"}, masked=True).prepare(*greeted)


def totals(ready):
    reply, _ = local_update(ready.engine, 0, Instruction({}), {}, 0)
    return reply.update["total"][0]


PLAN = Parties(3).plan


def released(ready):
    """Return a ledger that knows the samples of one plan."""
    ledger = Ledger()
    ledger.change_plan(PLAN.digest, content=PLAN.content(), opened=None)
    ledger.release(PLAN.digest, ledger.digests(ready.raw()))
    return ledger


def asked_again(ledger, ready, consent=()):
    """Ask a party's ledger for a second plan."""
    ledger.compare_with(ready.present())
    ledger.check("00" * 32, PLAN.content(), ledger.digests(ready.raw()), None, consent)


def code_again(ledger, ready):
    with pytest.raises(RefusedError) as refused:
        asked_again(ledger, ready)
    return refused.value.code


@pytest.mark.parametrize("change", CHANGES)
def test_rows_are_the_same_under_other_columns(change, tmp_path):
    folder = write_table(tmp_path / "north", ROWS)
    first = ready_for(folder, tmp_path)
    ledger = released(first)
    write_table(folder, [*ROWS, NEW])
    other = ready_for(folder, tmp_path, **CHANGES[change])
    rows, before = ({content for content, _ in ready.raw()} for ready in (other, first))
    assert len(rows - before) == 1
    assert code_again(ledger, other) == "samples-again"
    asked_again(ledger, other, ["again"])  # the owner may


def test_the_difference_under_nearly_the_same_bounds_is_a_row(tmp_path):
    """The positive control of the refusal above."""
    folder = write_table(tmp_path / "north", ROWS)
    first = totals(ready_for(folder, tmp_path))
    write_table(folder, [*ROWS, NEW])
    difference = totals(ready_for(folder, tmp_path, **CHANGES["bounds"])) - first
    shown = [
        low + (high - low) * (float(one) / 254 + 0.5)
        for (low, high), one in zip(ENDS.values(), difference, strict=True)
    ]
    np.testing.assert_allclose(shown, [float(NEW[AGE]), float(NEW[FARE])], atol=0.3)


def edited(rows):
    """Return rows with another fare each."""
    return [[*row[:FARE], f"{float(row[FARE]) + 0.01:.2f}", *row[FARE + 1 :]] for row in rows]


WRITTEN = {
    "edited": lambda: (edited(ROWS), HEADER),
    "a column more": lambda: ([[*row, i] for i, row in enumerate(ROWS)], [*HEADER, "score"]),
    "a column less": lambda: ([row[1:] for row in ROWS], HEADER[1:]),
    "other rows": lambda: (
        [row for row in passengers(360, seed=4) if row[-1] in "AB"], HEADER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", WRITTEN)
def test_no_row_of_a_table_that_was_written_again_is_certainly_another(how, tmp_path):
    """Each row has another digest; whether it is another person no digest says."""
    folder = write_table(tmp_path / "north", ROWS)
    first = ready_for(folder, tmp_path)
    ledger = released(first)
    write_table(folder, *WRITTEN[how]())
    again = ready_for(folder, tmp_path)
    assert {*again.raw()}.isdisjoint(first.raw())
    assert code_again(ledger, again) == "samples-again"
    asked_again(ledger, again, ["again"])


def test_rows_that_a_table_has_beside_those_of_a_plan_are_others(tmp_path):
    """Unlabelled rows of the same table are in no sum yet."""
    pool = [[*row[:-1], ""] for row in passengers(30, seed=2)]
    folder = write_table(tmp_path / "north", [*ROWS, *pool])
    ledger = released(ready_for(folder, tmp_path))
    adapting = ready_for(folder, tmp_path, unlabelled="summed")
    assert len([*adapting.raw()]) == len(pool)
    asked_again(ledger, adapting)
    write_table(folder, [*ROWS[1:], *pool])
    assert code_again(ledger, ready_for(folder, tmp_path, unlabelled="summed")) == "samples-again"


def test_a_ledger_that_knows_features_of_rows_proves_nothing(tmp_path):
    """An earlier version kept digests of what columns had made of the rows."""
    folder = write_table(tmp_path / "north", ROWS)
    ready = ready_for(folder, tmp_path)
    ledger = released(ready)
    ledger._released[PLAN.digest] = ledger.digests([b"features of a row"])
    assert code_again(ledger, ready) == "samples-again"


def test_a_row_is_the_same_in_every_format_and_order_of_columns(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = arrow_table(ROWS)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    places = [
        write_csv(tmp_path / "a.csv", ROWS),
        write_csv(tmp_path / "b.csv", [row[::-1] for row in ROWS], HEADER[::-1]),
        tmp_path / "a.parquet",
        save_as_datasets_does(tmp_path / "saved", table),
    ]
    found = []
    for place in places:
        opened = open_table(place)
        found.append(
            np.concatenate(
                [row_digests(part, opened.names) for part in opened.blocks(opened.names)]
            )
        )
    assert len(np.unique(found[0], axis=0)) == len(ROWS)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize(
    ("cell", "other", "same"),
    [
        ("3", "3.0", True), ("3", "3.5", False), ("", "NA", True), ("", "0", False), ("0", "-0.0", True),
        ("True", "true", True), ("1912-04-04", "1912-04-04T00:00", True), ("a", "b", False),
        ("1912-04-04", "1912-04-05", False), ("0001-01-01T00:00+14:00", "a", False),
    ],
)  # fmt: skip
def test_cells_are_compared_by_what_they_say(cell, other, same, tmp_path):
    assert np.array_equal(*digests_of(cell, other, tmp_path)) is same


def digests_of(cell, other, tmp_path, kinds=None):
    """Return the digests of two rows that differ in a cell."""
    rows = [[cell, "x"], [other, "x"]]
    opened = open_table(write_csv(tmp_path / "a.csv", rows, ["one", "two"]))
    (block,) = opened.blocks(opened.names)
    return row_digests(block, opened.names, kinds)


@pytest.mark.parametrize("kind", ["number", "category", "boolean", "date"])
@pytest.mark.parametrize(
    ("cell", "other"),
    [
        ("7", "07"), ("3", "3.0"), ("7", "7.0e0"), ("10", "1_0"), ("TRUE", "true"), ("NA", "None"), ("", "NA"),
        ("nan", "NaN"), ("1912-04-04", "1912-04-04T00:00"), ("9007199254740993", "9007199254740992"), ("a", "a "),
    ],
)  # fmt: skip
def test_rows_of_one_exact_digest_have_the_same_features(cell, other, kind, tmp_path):
    """So that a corrected cell that moves a sum is a change, whatever a coordinator makes of it."""
    alike = np.array_equal(*digests_of(cell, other, tmp_path, {"one": kind}))
    if kind == "number" and (cell, other) in (("7", "07"), ("3", "3.0"), ("7", "7.0e0")):
        assert alike  # a table that is saved again has the same samples
    values = sorted({text_of(cell) or "x", text_of(other) or "y", "z"})
    given = {
        "number": {"bounds": [0, 100]},
        "date": {"bounds": ["1912-01-01", "1913-01-01"]},
        "category": {"values": values},
    }.get(kind, {})
    column = Column(name="one", kind=kind, **given)
    for missing in ([], ["NA"], ["nan"]):
        try:
            one, two = (encode(column, [text], missing) for text in (cell, other))
        except CellError:  # no such column has this cell
            continue
        assert not alike or np.array_equal(one, two, equal_nan=True)


def test_a_run_of_one_machine_reads_no_other_column(tmp_path):
    root = write_table(tmp_path / "north", [*ROWS, *passengers(60)])
    given = {"name": "table", "root": root, "label": "deck", "columns": COLUMNS}
    for part in (True, False):
        benchmark = TableBenchmark.load(TableBenchmark.Settings(**given, part=part), 0)
        assert (benchmark.originals is not None) is part


@pytest.mark.parametrize("size", [8, 16])
def test_pictures_and_frames_are_the_same_whatever_is_made_of_them(size, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(5):
            pages = [Image.fromarray(rng.integers(0, 2**16, (20, 20), np.uint16)) for _ in range(3)]
            pages[0].save(tmp_path / name / f"{i}.tif", save_all=True, append_images=pages[1:])
    (tmp_path / "classes.csv").write_text("name,split,a\ncat,seen,1\ndog,seen,2\nelk,unseen,3\n")

    def raw(**data):
        party = PartyData(tmp_path, settings={"name": "images", "resize": None, **data})
        return {*raw_samples(tmp_path, party.benchmark, party.benchmark.train)}

    plain = raw(size=32)
    each = raw(size=32, frames="each")
    assert (len(plain), len(each)) == (10, 30)
    assert plain < each  # so that one plan of pictures and one of frames overlap
    assert raw(size=size, window=(0, 100)) == plain
    assert raw(size=size, window=(0, 100), frames="each") == each


class Three:
    """Parties with tables that answer plan after plan with the same state."""

    def __init__(self, folder, consent):
        self.folder, self.consent = folder, consent
        decks = {"north": "A", "south": "B", "west": "DE"}
        rows = passengers(360)
        for name, held in decks.items():
            write_table(folder / name, [row for row in rows if row[-1] in held])
        enrol(folder / "kits", NAMES)

    def party(self, name):
        held = PartyData(self.folder / name, {"data.label": "deck"}, masked=True)
        owner = Owner(kit=self.folder / "kits" / name, masked=True, consent=self.consent)
        return Party(held.prepare, Site(self.folder / f"state-{name}", owner))

    def counts(self, out, **changes):
        """Return how many samples of each deck the merged model of a plan has."""
        link = Recorder({name: self.party(name) for name in NAMES})
        chosen = experiment(self.folder / "coordinator", **changes)
        done = host(chosen, link, self.folder / out, self.folder / "kits")
        return dict(zip(done.space.names, done.model.params["count"].tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_coordinator")
@pytest.mark.parametrize("how", ["a row more", "edited"])
@pytest.mark.parametrize("consent", [(), ("again",)])
def test_a_coordinator_gets_one_sum_of_a_table(how, consent, tmp_path):
    three = Three(tmp_path, consent)
    before = three.counts("first")
    rows = [row for row in passengers(360) if row[-1] == "A"]
    write_table(tmp_path / "north", [*(rows if how == "a row more" else edited(rows)), NEW])
    changed = CHANGES["bounds"] if how == "a row more" else {}
    if not consent:
        with pytest.raises(QuorumError, match="refused-data"):
            three.counts("second", **changed)
        return
    after = three.counts("second", **changed)  # the positive control
    assert {deck: after[deck] - before[deck] for deck in DECKS} == dict.fromkeys(DECKS, 0) | {
        "A": 1
    }


@pytest.mark.parametrize("stated", [{"window": (1000, 1010)}, {"frames": "each"}])
def test_an_owner_states_a_window_and_frames_too(stated, tmp_path):
    """Pictures that are black but one, and the frames of one file as many samples of a class."""
    settings = ImageFolder.Settings(name="images", root=tmp_path, **stated)
    with pytest.raises(RefusedError, match="if the owner agrees") as refused:
        check_stated(settings, {}, 1)
    assert refused.value.code == "refused-settings"
    check_stated(settings, stated, 1)
    check_stated(ImageFolder.Settings(name="images", root=tmp_path), {}, 1)


@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_party_reads_no_sample_before_its_owner_has_stated_them(
    min_samples, tmp_path, monkeypatch
):
    def refuse(settings, owner, asked):
        assert (settings.name, dict(owner), asked) == ("table", {"label": "deck"}, 1)
        raise RefusedError("a window", "refused-settings")

    monkeypatch.setattr(client_data, "check_stated", refuse)
    folder = write_table(tmp_path / "north", ROWS)
    greeted = greeting(experiment(tmp_path / "coordinator"), tmp_path / "run")
    party = PartyData(folder, {"data.label": "deck"}, masked=True, min_samples=min_samples)
    if min_samples == 1:
        assert party.prepare(*greeted).samples == len(ROWS)
        return
    with pytest.raises(RefusedError, match="a window"):
        party.prepare(*greeted)


@pytest.mark.parametrize("label", ["deck", "reviewed"])
def test_a_row_of_another_class_column_is_another_sample(label, tmp_path):
    """An owner reads the class from a column in which one row is corrected: the sums of the same
    rows would differ by that row.
    """
    rows = [[*row, row[-1]] for row in sorted(ROWS, key=lambda row: row[-1])]
    rows[3][-1] = "B"
    folder = write_table(tmp_path / "north", rows, [*HEADER, "reviewed"])
    columns = [{"name": "fare", "kind": "number", "bounds": [0, 100]}]
    header, tensors = greeting(experiment(tmp_path / "coordinator", columns), tmp_path / "run")
    settings = {"data.label": "deck"}
    first = PartyData(folder, settings, masked=True, min_samples=5).prepare(header, tensors)
    ledger = Ledger()
    plan = replace(RELEASED, sums=2)
    ledger.change_plan(plan.digest, content=plan.content(), opened=None, waiting={"k": 0})
    ledger.release(plan.digest, ledger.digests(first.raw()))

    settings = {"data.label": label}
    again = PartyData(folder, settings, masked=True, min_samples=5).prepare(header, tensors)
    ledger.compare_with(again.present())
    given = plan.digest, plan.content(), ledger.digests(again.raw()), None, []
    if label == "deck":
        ledger.check(*given)
    else:
        with pytest.raises(RefusedError) as refused:
            ledger.check(*given)
        assert refused.value.code == "samples-changed"

    of_a = sum(row[HEADER.index("deck")] == "A" for row in ROWS)
    removal = Removal(range(of_a, len(ROWS)), False)  # all rows of B, but the corrected one
    party = PartyData(folder, settings, masked=True, removal=removal, min_samples=5)
    named = {**header, "names": list(NAMES), "removing": [NAMES[0]]}
    ready = party.prepare(named, tensors)
    if label == "deck":
        ready.check_removal(ledger, REMOVAL.digest)
    else:
        with pytest.raises(RefusedError) as refused:
            ready.check_removal(ledger, REMOVAL.digest)
        assert refused.value.code == "removal-leaves"
