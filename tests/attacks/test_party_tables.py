"""A federation of tables: the experiment's vocabulary is everybody's, and no other category is
named.
"""

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.deploy.site import Owner, Site
from mixed_tables import DECKS, HEADER, describe, passengers, write_csv
from small_federation import MASKED, NAMES, Recorder, host

pytestmark = pytest.mark.usefixtures("quick_coordinator")
HELD = {"north": "A", "south": "B", "west": "DE"}
SECRET = "Atlantis"
COLUMNS = [
    {"name": "age", "kind": "number", "bounds": [30, 70], "fill": 50, "indicator": True},
    {"name": "fare", "kind": "number", "bounds": [0, 100]},
    {"name": "port", "kind": "category", "values": ["Cherbourg", "Southampton"]},
    {"name": "crew", "kind": "boolean"},
]


class Kept(Recorder):
    """A link that keeps what parties answer, too."""

    def __init__(self, parties):
        super().__init__(parties)
        self.answers = []

    def ask(self, name, message):
        future = super().ask(name, message)
        self.answers.append(future.result())
        return future


def write_table(folder, rows):
    """Write a folder as a party has it; its columns are in an order of its own."""
    describe(folder)
    write_csv(folder / "people.csv", [row[::-1] for row in rows], HEADER[::-1])
    return folder


def experiment(root, **data):
    tree = {
        "data": {
            "name": "table", "root": str(root), "label": "deck", "columns": COLUMNS, "features": ["min-max"],
            "bounds": [[0, 1]], **data,
        },
        "method": {"name": "gaussian"},
        "partition": {"clients": len(NAMES)},
        "evaluation": {"selection": "last", "theory": False, "embedding": False},
        "run": {"device": "cpu"},
    }  # fmt: skip
    return Experiment.from_dict(tree)


@pytest.fixture
def hosted(tmp_path):
    """The coordinator's run, all answers, and the rows that parties hold."""
    rows = passengers(400)
    mine = {name: [row for row in rows if row[-1] in decks] for name, decks in HELD.items()}
    port = HEADER.index("port")
    for row in mine["west"][::2]:
        row[port] = SECRET
    folders = {name: write_table(tmp_path / name, mine[name]) for name in NAMES}
    describe(tmp_path / "coordinator")
    tests = [[*row, "test"] for row in passengers(120, seed=1)]
    write_csv(tmp_path / "coordinator" / "people.csv", tests, [*HEADER, "split"])
    enrol(tmp_path / "kits", NAMES)
    chosen = experiment(tmp_path / "coordinator", part=True).with_overrides(
        {**MASKED, "engine.name": "nvflare", "engine.mode": "deployment"}
    )

    def party(name):
        owner = {"data.label": "deck"}  # to look at the folder before a greeting comes
        # of 1, sums are those of one machine: nothing is hidden of few rows
        held = PartyData(folders[name], owner, masked=True, min_samples=1)
        owner = Owner(kit=tmp_path / "kits" / name, masked=True)
        return Party(held.prepare, Site(tmp_path / f"state-{name}", owner))

    link = Kept({name: party(name) for name in NAMES})
    done = host(chosen, link, tmp_path / "run", tmp_path / "kits")
    return done, link.answers, [row for name in NAMES for row in mine[name]]


@pytest.mark.slow
def test_parties_with_tables_send_the_sums_of_one_table(hosted, tmp_path):
    done, answers, rows = hosted
    root = describe(tmp_path / "whole")
    lines = [[*row, "train"] for row in rows]
    lines += [[*row, "test"] for row in passengers(120, seed=1)]
    write_csv(root / "people.csv", lines, [*HEADER, "split"])
    del answers
    whole = run(experiment(root), tmp_path / "local")
    assert done.result["sums_sha256"] == whole.result["sums_sha256"]
    assert load_run(done.path).predict(root / "people.csv", top=1)
    assert set(DECKS) == set(done.space.names)


@pytest.mark.slow
def test_no_message_names_a_category_that_one_party_has(hosted):
    done, answers, _ = hosted
    assert len(answers) > 6
    assert not any(SECRET.encode() in answer for answer in answers)
    stored = [path for path in done.path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in path.read_bytes() for path in stored)
    assert np.isfinite(done.result["zsl"])
