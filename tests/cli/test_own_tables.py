"""Tables from ``init`` on: runs, questions, examples, the service, an export, and a federation."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedunseen import Experiment, ZeroShotClassifier, load_run
from fedunseen.core.errors import ArgumentError, RefusedError
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.refusals import code_of
from fedunseen.experiment.assemble import load_data
from mixed_tables import DECKS, HEADER, UNSEEN, arrow_table, describe, passengers, write_csv

ROWS = passengers()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table, its class table, and a finished run."""
    folder = tmp_path_factory.mktemp("ship")
    describe(folder / "ship")
    return write_csv(folder / "ship.csv", ROWS).parent


@pytest.fixture(scope="module")
def ship(place):
    """What ``init`` writes, and the run of it."""
    from fedunseen import run
    from fedunseen.experiment.init_template import TableOptions, suggest

    file = place / "ship.toml"
    suggestion = suggest(place / "ship.csv", file, options=TableOptions(label="deck"))
    file.write_text(suggestion.text, "utf-8")
    return SimpleNamespace(
        folder=place, file=file, said=suggestion, run=run(Experiment.load(file), place / "run")
    )


def changed(rows, place, cell):
    """Return the first rows with another cell in one column."""
    return [[cell if i == place else old for i, old in enumerate(row)] for row in rows[:4]]


def test_init_writes_the_columns_for_people_to_edit(ship):
    data = tomllib.loads(ship.file.read_text("utf-8"))["data"]
    assert (data["name"], data["table"], data["label"]) == ("table", "ship.csv", "deck")
    columns = {column["name"]: column for column in data["columns"]}
    assert list(columns) == ["age", "fare", "port", "child", "boarded", "crew"]
    assert columns["port"] == {
        "name": "port", "kind": "category", "values": ["Cherbourg", "Queenstown", "Southampton"],
        "indicator": True,
    }  # fmt: skip
    assert columns["boarded"]["bounds"] == ["1912-04-04", "1912-04-09"]
    said = [choice.what for choice in ship.said.choices]
    assert "column 'port': 1 rare values count as 'other'" in said
    assert "column 'ticket' left out" in said
    assert ship.run.result["gzsl_seen"] > 60
    assert ship.run.result["zsl"] > 70


def test_a_check_of_the_folder_reads_the_table_beside_it(works, ship):
    found = works("data", "check", ship.folder / "ship", "--json").answer
    assert (found["benchmark"], found["problems"]) == ("table", [])
    assert (found["samples"], found["classes"], found["unseen"]) == (240, 6, 2)


def test_an_edited_column_changes_the_features(ship):
    tree = tomllib.loads(ship.file.read_text("utf-8"))
    tree["data"] |= {"root": str(ship.folder / "ship"), "table": str(ship.folder / "ship.csv")}
    tree["data"]["columns"] = tree["data"]["columns"][2:]
    assert load_data(Experiment.from_dict(tree), 0).features.shape == (240, 5 + 1 + 2 + 1)


@pytest.mark.slow
def test_csv_parquet_and_parts_run_with_the_same_bits(works, ship, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    table = arrow_table(ROWS)
    describe(tmp_path / "ship")
    pq.write_table(table, tmp_path / "ship.parquet", row_group_size=64)
    describe(tmp_path / "parts")
    for i in range(2):
        pq.write_table(table.slice(120 * i, 120), tmp_path / "parts" / f"part-{i:03}.parquet")
    for source, name in (("ship.parquet", "ship"), ("parts", "parts")):
        works("init", tmp_path / source, "--label", "deck")
        done = works("run", tmp_path / f"{name}.toml", "--out", tmp_path / f"run-{name}", "--json")
        assert done.answer["sums_sha256"] == ship.run.result["sums_sha256"]


PUBLIC = {  # class -> seen or unseen, and two attributes
    "penguins": "Adelie,seen,0.3,0.9\nGentoo,seen,1,0.2\nChinstrap,unseen,0.35,0.9\n",
    "cars": "USA,seen,1,0.2\nJapan,seen,0.2,1\nEurope,unseen,0.3,0.6\n",
}


def public_table(name):
    """Return a table that others published: numbers, categories, dates, and missing cells."""
    if name == "penguins":
        return pytest.importorskip("palmerpenguins").load_penguins()
    place = Path(pytest.importorskip("vega_datasets").__file__).parent / "_data" / "cars.json"
    cars = pd.DataFrame(json.loads(place.read_text("utf-8")))
    cars["Year"] = pd.to_datetime(cars["Year"])
    cars["Heavy"] = cars["Weight_in_lbs"] > 3000
    return cars


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_table_runs_with_the_same_bits_from_each_format(works, tmp_path, name):
    pytest.importorskip("pyarrow")
    table = public_table(name)
    write = {
        "csv": lambda path: table.to_csv(path, index=False),
        "parquet": table.to_parquet,
        "feather": table.to_feather,
    }
    sums = []
    for end, save in write.items():
        folder = tmp_path / end / name
        folder.mkdir(parents=True)
        (folder / "classes.csv").write_text(f"name,split,weight,depth\n{PUBLIC[name]}")
        path = folder.with_suffix(f".{end}")
        save(path)
        works("init", path)  # its classes are those of classes.csv: so the label column is found
        done = works("run", f"{folder}.toml", "--out", tmp_path / end / "run", "--json").answer
        sums.append(done["sums_sha256"])
        measure = "gzsl_seen" if name == "penguins" else "uncalibrated_gzsl_seen"
        assert done[measure] > 60  # chance is 33; two classes of cars do not choose an offset
    assert len(set(sums)) == 1
    page = (tmp_path / "csv" / "run" / "report.html").read_text("utf-8")
    assert "There is one unseen class, so ZSL is 100 whatever the model." in page
    assert f"for <strong>{done['gzsl_unseen']:.1f}&nbsp;%</strong> of its test samples" in page
    kinds = {
        one["kind"] for one in tomllib.loads(Path(f"{folder}.toml").read_text())["data"]["columns"]
    }
    assert kinds >= (
        {"number", "category"} if name == "penguins" else {"number", "boolean", "date"}
    )


def test_a_table_is_asked_about_as_it_was_trained_on(works, ship):
    done = works("predict", ship.run.path, ship.folder / "ship.csv", "--top", 1, "--json")
    answers = [one["classes"][0]["name"] for one in done.answer]
    assert done.answer[7]["input"] == f"{ship.folder / 'ship.csv'}[7]"
    assert "the column 'deck' has the classes, and is ignored" in done.err
    assert np.mean([name == row[-1] for name, row in zip(answers, ROWS, strict=True)]) > 0.6


def test_columns_are_found_by_name_and_cells_may_be_missing(ship, tmp_path):
    run = load_run(ship.run.path)
    few = write_csv(tmp_path / "few.csv", [row[:-1] for row in ROWS[:9]], HEADER[:-1])
    turned = write_csv(
        tmp_path / "turned.csv", [row[:-1][::-1] for row in ROWS[:9]], HEADER[:-1][::-1]
    )
    frame = pd.read_csv(few, parse_dates=["boarded"])
    rows = [dict(zip(HEADER[:-1], row, strict=False)) for row in ROWS[:9]]
    rows[0].pop("age")  # it was empty
    wanted = [[p.score for p in ranking] for ranking in run.predict(few)]
    for source in (turned, frame, rows):
        assert [[p.score for p in ranking] for ranking in run.predict(source)] == wanted


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        (("age", "old"), "wrong-type"),
        (("boarded", "9.4.1912"), "wrong-type"),
        (("boarded", "1912-04-99"), "wrong-type"),
        (("fare", "1e999"), "not-finite"),
        (("port", "Atlantis"), ""),
        (("age", ""), ""),
        (("fare", "900"), ""),
    ],
)
def test_odd_cells_are_refused_or_treated_as_stated(command, ship, tmp_path, cells, code):
    name, cell = cells
    path = write_csv(tmp_path / "odd.csv", changed(ROWS, HEADER.index(name), cell))
    done = command("predict", ship.run.path, path, "--top", 1, "--json")
    assert done.code == (2 if code else 0)
    if code:
        assert f"[{code}]" in done.err
        assert f"odd.csv, line 2, column {name!r}: " in done.err
    if cell == "Atlantis":
        assert (
            "column 'port': 4 cells not among its values in data.columns, and read as" in done.err
        )
    if cell == "900":
        assert "4 cells outside of its bounds" in done.err


def test_a_missing_column_is_refused_by_its_name(refused, ship, tmp_path):
    path = write_csv(tmp_path / "odd.csv", ROWS, [*HEADER[:3], "Fare", *HEADER[4:]])
    said = refused("predict", ship.run.path, path)
    assert f"{path} has no column 'fare' (did you mean 'Fare'?): " in said
    sheet = tmp_path / "odd.xlsx"
    sheet.write_bytes(b"PK")
    assert f"{sheet} is no table: give a file that ends in .csv" in refused(
        "predict", ship.run.path, sheet
    )


def test_a_table_shows_examples_of_classes(works, ship, tmp_path):
    shown = [row for row in ROWS if row[-1] in UNSEEN]
    renamed = [[*row[:-1], "G"] if row[-1] == "F" else row for row in shown]
    path = write_csv(tmp_path / "shown.csv", renamed)
    done = works("learn", ship.run.path, "--support", path, "--out", tmp_path / "new", "--json")
    assert done.answer["learnt"] == ["G"]
    ranking = load_run(tmp_path / "new").predict(path, top=1)
    right = [one.name == row[-1] for (one,), row in zip(ranking, renamed, strict=True)]
    assert np.mean(right) > 0.7


def test_labels_of_other_classes_and_no_label_at_all_are_refused(refused, ship, tmp_path):
    describe(tmp_path / "odd")
    path = write_csv(tmp_path / "odd.csv", [*ROWS, [*ROWS[0][:-1], "Z"]])
    said = refused("init", path, "--label", "deck")
    assert "odd.csv, line 242, column 'deck': 'Z' is not a class of classes.csv" in said
    assert not (tmp_path / "odd.toml").exists()
    empty = write_csv(tmp_path / "empty.csv", [[*row[:-1], ""] for row in ROWS])
    said = refused("learn", ship.run.path, "--support", empty, "--out", tmp_path / "new")
    assert "the column 'deck' names no class" in said


@pytest.mark.slow
def test_options_about_columns_are_checked(refused, ship):
    table = ship.folder / "ship.csv"
    more = ("--force", "--label")
    assert "unknown column 'Deck': did you mean 'deck'?" in refused("init", table, *more, "Deck")
    assert "unknown kind 'prose'" in refused("init", table, *more, "deck", "--as", "age=prose")
    assert "write COLUMN=KIND" in refused("init", table, *more, "deck", "--as", "age")
    assert "is no table" in refused("init", ship.folder / "ship", *more, "deck", "--out", "a.toml")


@pytest.mark.slow
def test_an_exported_model_reads_the_same_table(works, ship, tmp_path):
    pytest.importorskip("onnxruntime")
    works("export", ship.run.path, "--out", tmp_path / "model")
    command = [sys.executable, "predict.py", str(ship.folder / "ship.csv"), "--top", "1"]
    done = subprocess.run(
        command, cwd=tmp_path / "model", capture_output=True, text=True, check=True,
        env={"PATH": "", "PYTHONPATH": ""},
    )  # fmt: skip
    answers = [json.loads(line)[0]["name"] for line in done.stdout.splitlines()]
    ranked = load_run(ship.run.path).predict(ship.folder / "ship.csv", top=1)
    assert answers == [one.name for (one,) in ranked]


def test_a_part_is_read_by_the_experiments_columns_alone(ship, tmp_path):
    """What only one party has is ``other``; what the party's table would suggest is not asked."""
    shutil.copytree(ship.folder / "ship", tmp_path / "west")
    own = [row for row in ROWS if row[-1] in "AB"]
    secret = [[*row[:4], "Atlantis", *row[5:]] for row in own]
    path = write_csv(tmp_path / "west" / "people.csv", secret, [*HEADER[:-1], "label"])
    party = PartyData(tmp_path / "west")
    assert party.kind == "table"
    assert "port: Atlantis" not in str(party.settings.columns)
    stated = {**load_run(ship.run.path).experiment.data.model_dump(mode="json"), "label": "label"}
    benchmark = party._read(stated)
    port = benchmark.features[:, 3:8]
    assert port.tolist() == [[0, 0, 0, 1, 0]] * len(own)
    with pytest.raises(RefusedError) as error:
        party._tree({"experiment": {"data": {**stated, "columns": []}, "privacy": {}}}, {})
    assert error.value.code == "refused-settings"
    rows = [[*row[:3], "a lot", *row[4:]] for row in secret]
    write_csv(path, rows, [*HEADER[:-1], "label"])
    with pytest.raises(Exception, match="'a lot'") as error:
        party._read(stated)
    assert code_of(error.value) == "refused-data"


def test_the_estimator_takes_data_frames(ship, tmp_path):
    frame = pd.read_csv(ship.folder / "ship.csv", parse_dates=["boarded"])
    decks = frame.pop("deck")
    with pytest.warns(UserWarning, match="column 'ticket' left out"):
        model = ZeroShotClassifier().fit(frame, decks)
    assert [column.name for column in model.columns_][:3] == ["age", "fare", "port"]
    assert model.score(frame, decks) > 0.8
    scores = model.predict_proba(frame)
    model.save(tmp_path / "model")
    loaded = ZeroShotClassifier.load(tmp_path / "model")
    for other in (frame[frame.columns[::-1]], frame.astype({"port": "category"})):
        np.testing.assert_array_equal(loaded.predict_proba(other), scores)
    pl = pytest.importorskip("polars")
    np.testing.assert_array_equal(loaded.predict_proba(pl.from_pandas(frame)), scores)
    assert len(model.predict(frame.assign(port="Atlantis"))) == len(frame)
    for wrong, code in (
        (frame.rename(columns={"age": "Age"}), "missing-column"),
        (frame.assign(age="old"), "wrong-type"),
    ):
        with pytest.raises(ArgumentError) as error:
            model.predict(wrong)
        assert error.value.code == code
    mixed = frame.assign(age=["old", *frame["age"][1:]])
    with pytest.raises(ArgumentError) as error:
        ZeroShotClassifier().fit(mixed, decks)
    assert error.value.code == "mixed-types"
    assert set(model.classes_) == set(DECKS)
