"""Columns of a table as features: against scikit-learn, in every format, and what is refused."""

import json
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder

from fedunseen.core.arrays import MAPPED
from fedunseen.core.errors import DataError, ExperimentError, MissingDependencyError
from fedunseen.core.memory import Mapped
from fedunseen.data.columns import Column, Treatment
from fedunseen.data.columns.first_look import look
from fedunseen.data.columns.treatment import as_days, text_of
from fedunseen.data.io import tables
from fedunseen.data.io.tables import find_table, is_table, of_frame, of_rows, open_table
from mixed_tables import HEADER, arrow_table, passengers, save_as_datasets_does, write_csv

ROWS = passengers()
AGE = Column(name="age", kind="number", bounds=(30, 70), fill=50, indicator=True)
PORT = Column(name="port", kind="category", values=("Cherbourg", "Southampton"), indicator=True)
BOARDED = Column(name="boarded", kind="date", bounds=("1912-04-01", "1912-04-11"))


def features(table, columns):
    return np.concatenate([part.features for part in Treatment(tuple(columns)).read(table)])


def code_of(call, kind=DataError):
    with pytest.raises(kind) as error:
        call()
    assert "\n" not in str(error.value)
    return error.value.code, str(error.value)


@pytest.fixture
def plain(tmp_path):
    return write_csv(tmp_path / "ship.csv", ROWS)


def test_the_features_are_those_of_scikit_learns_transformers(plain):
    frame = pd.read_csv(plain)
    numbers = ["age", "fare"]
    table = open_table(plain)
    found = {column.name: column for column in look(table, label="deck").columns}
    assert found["port"].values == ("Cherbourg", "Queenstown", "Southampton")
    columns = [found[name] for name in (*numbers, "port")]
    ours = features(table, columns)
    scaled = make_pipeline(SimpleImputer(strategy="median"), MinMaxScaler())
    known = OneHotEncoder(
        categories=[list(found["port"].values)], handle_unknown="ignore", sparse_output=False
    )
    theirs = ColumnTransformer(
        [("numbers", scaled, numbers), ("known", known, ["port"]), ("absent", MissingIndicator(), ["age", "port"])],
        verbose_feature_names_out=False,
    ).fit_transform(frame)  # fmt: skip
    names = Treatment(tuple(columns)).feature_names
    assert names[:3] == ["age", "age: missing", "fare"]
    order = [names.index(name) for name in ("age", "fare")]
    order += [names.index(f"port: {value}") for value in found["port"].values]
    order += [names.index("age: missing"), names.index("port: missing")]
    np.testing.assert_allclose(ours[:, order], theirs.astype(float), atol=1e-6)
    other = ours[:, names.index("port: other")]
    np.testing.assert_array_equal(other, frame["port"] == "Belfast")


def in_formats(folder):
    """Return the same table in every format."""
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    table = arrow_table(ROWS)
    paths = {"csv": write_csv(folder / "ship.csv", ROWS)}
    paths["parquet"] = folder / "ship.parquet"
    pq.write_table(table, paths["parquet"], row_group_size=70)
    paths["arrow"] = folder / "ship.arrow"
    feather.write_feather(table, paths["arrow"], compression="uncompressed")
    paths["parts"] = folder / "parts"
    paths["parts"].mkdir()
    for i in range(3):
        pq.write_table(table.slice(80 * i, 80), paths["parts"] / f"part-{i:03}.parquet")
    paths["datasets"] = save_as_datasets_does(folder / "saved", table)
    texts = table.set_column(3, "fare", table["fare"].cast("float64")).to_pandas()
    return paths, [of_frame(texts), of_frame(table)]


def test_every_format_has_the_same_bits(tmp_path):
    pytest.importorskip("pyarrow")
    pl = pytest.importorskip("polars")
    paths, frames = in_formats(tmp_path)
    frames.append(of_frame(pl.from_arrow(arrow_table(ROWS))))
    first = look(open_table(paths["csv"]), label="deck")
    assert [column.kind for column in first.columns] == [
        "number", "number", "category", "boolean", "date", "boolean",
    ]  # fmt: skip
    wanted = features(open_table(paths["csv"]), first.columns)
    assert wanted.shape == (240, 2 + 1 + 5 + 1 + 2 + 1)
    for table in (*map(open_table, paths.values()), *frames):
        found = look(table, label="deck")
        assert (found.columns, found.names) == (first.columns, first.names), table.source
        np.testing.assert_array_equal(features(table, first.columns), wanted)


def test_a_look_does_not_depend_on_how_rows_are_grouped(monkeypatch, plain):
    monkeypatch.setattr("fedunseen.data.columns.first_look._KEPT", 32)
    whole = look(open_table(plain), label="deck")
    for rows in (7, 50):
        monkeypatch.setattr(tables, "ROWS", rows)
        assert look(open_table(plain), label="deck").columns == whole.columns


def test_a_look_says_what_it_leaves_out(plain):
    notes = {note.what: note.why for note in look(open_table(plain), label="deck").notes}
    assert notes["column 'row id' left out"].startswith("it has another value in each line")
    assert notes["column 'ticket' left out"] == "most of its values have fewer than 5 rows"
    assert "point at these rows" in notes["column 'port': 1 rare values count as 'other'"]
    assert notes["column 'port': 1 missing cell"] == "marked in a feature of its own"
    assert notes["column 'age': 27 missing cells"].endswith("and marked in a feature of its own")
    columns = look(open_table(plain), "deck", ["fare"], {"crew": "category"}).columns
    assert {column.name: column.kind for column in columns}["crew"] == "category"
    assert "fare" not in [column.name for column in columns]


def test_a_vocabulary_names_no_category_of_fewer_than_five_rows(tmp_path):
    cells = ["rare"] * 4 + ["five"] * 5 + ["often"] * 20
    path = write_csv(tmp_path / "a.csv", [[cell, "x"] for cell in cells], ["kind", "label"])
    (column,) = look(open_table(path)).columns
    assert column.values == ("five", "often")


def test_cells_of_any_type_are_the_same_category_number_and_date():
    assert [text_of(value) for value in (3, 3.0, np.float64(3), "3.0", "03", True)] == [
        "3", "3", "3", "3", "03", "true",
    ]  # fmt: skip
    noon = datetime(2024, 5, 17, 14, tzinfo=UTC).astimezone()
    cells = [date(2024, 5, 17), "2024-05-17", "2024-05-17T14:00:00Z", noon, pd.Timestamp(noon)]
    assert [as_days(cell) for cell in cells] == pytest.approx(
        [19860, 19860] + [19860 + 14 / 24] * 3
    )
    rows = [
        {"age": value} for value in (40, 40.0, "40", Decimal(40), np.int8(40), None, pd.NA, "NA")
    ]
    assert features(of_rows(rows), [AGE]).tolist() == [[0.25, 0]] * 5 + [[0.5, 1]] * 3


def test_columns_are_found_by_name_in_any_order(plain, tmp_path):
    turned = [row[::-1] for row in ROWS]
    other = write_csv(tmp_path / "turned.csv", turned, HEADER[::-1])
    columns = [AGE, PORT, BOARDED]
    np.testing.assert_array_equal(
        features(open_table(other), columns), features(open_table(plain), columns)
    )
    renamed = write_csv(tmp_path / "renamed.csv", ROWS, [*HEADER[:2], "Age", *HEADER[3:]])
    code, message = code_of(lambda: features(open_table(renamed), columns))
    assert code == "missing-column"
    assert "has no column 'age' (did you mean 'Age'?): " in message


def test_a_cell_beyond_its_bounds_is_clipped_and_said():
    rows = of_rows([{"age": value} for value in (20, 30, 70, 99)])
    with pytest.warns(UserWarning, match="column 'age': 2 cells outside of its bounds"):
        assert features(rows, [AGE])[:, 0].tolist() == [0, 0, 1, 1]
    new = of_rows([{"port": "Atlantis"}, {"port": None}])
    assert features(new, [PORT]).tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
    assert features(new, [PORT.model_copy(update={"indicator": False})]).tolist() == [[0, 0, 1]] * 2


@pytest.mark.parametrize(
    ("column", "cell", "code"),
    [
        (AGE, "old", "wrong-type"),
        (AGE, date(2024, 1, 1), "wrong-type"),
        (AGE, "inf", "not-finite"),
        (BOARDED, "17.04.1912", "wrong-type"),
        (BOARDED, "1912-13-41", "wrong-type"),
        (BOARDED, 7, "wrong-type"),
        (Column(name="child", kind="boolean"), "perhaps", "wrong-type"),
    ],
)
def test_a_cell_of_another_kind_is_refused_with_its_place(column, cell, code):
    rows = of_rows([{column.name: None}, {column.name: cell}])
    found, message = code_of(lambda: features(rows, [column]))
    assert found == code
    assert message.startswith(f"the samples, sample 1, column {column.name!r}: ")
    assert "leave the cell empty" in message


def test_a_date_that_no_calendar_has_is_refused():
    pa = pytest.importorskip("pyarrow")
    far = pa.table({"boarded": pa.array([0, 2**62], pa.timestamp("us"))})
    code, message = code_of(lambda: features(of_frame(far), [BOARDED]))
    assert code == "date-out-of-range"
    assert "row 1, column 'boarded'" in message


BAD_COLUMNS = {
    "values are for a category": {"kind": "number", "values": ["x"]},
    "values names no value": {"kind": "category"},
    "values names 'x' twice": {"kind": "category", "values": ["x", "x"]},
    "bounds are missing": {"kind": "number"},
    "bounds are no range": {"kind": "number", "bounds": [2, 2]},
    "give two dates as 2024-05-17": {"kind": "date", "bounds": ["1.2.2024", "2024-05-17"]},
    "fill is 9": {"kind": "number", "bounds": [0, 1], "fill": 9},
    "bounds is for numbers and dates": {"kind": "category", "values": ["x"], "bounds": [0, 1]},
}


@pytest.mark.parametrize("problem", BAD_COLUMNS)
def test_a_column_that_makes_no_sense_is_refused(problem):
    code, message = code_of(lambda: Column(name="a", **BAD_COLUMNS[problem]), ExperimentError)
    assert code == "column-settings"
    assert problem in message


def test_two_columns_of_a_name_and_none_at_all_are_refused(plain, tmp_path):
    assert code_of(lambda: Treatment((AGE, AGE)), ExperimentError)[0] == "column-settings"
    assert code_of(lambda: Treatment(()), ExperimentError)[0] == "no-columns"
    twice = write_csv(tmp_path / "twice.csv", ROWS, [*HEADER[:-1], "age"])
    assert code_of(lambda: open_table(twice))[0] == "repeated-column"
    assert code_of(lambda: look(open_table(plain)))[0] == "no-label-column"


@pytest.mark.parametrize("few", ["abc", "12,5"])
def test_a_few_texts_among_numbers_are_refused(tmp_path, few):
    rows = [[str(i), "x"] for i in (3, 1, 4, 1, 5, 9)] + [[few, "x"]]
    path = write_csv(tmp_path / "a.csv", rows, ["size", "label"])
    code, message = code_of(lambda: look(open_table(path)))
    assert code == "mixed-types"
    assert f"a.csv, line 8, column 'size': {few!r} is no number" in message
    assert "--as 'size=category'" in message
    assert ("write 12.5" in message) == (few == "12,5")


def test_codes_of_which_many_have_letters_are_no_mistakes(tmp_path):
    """As the tickets of a ship's passengers have; a word that stands for a missing number is one."""
    codes = [f"PC {17000 + i}" if i % 4 == 0 else str(340_000 + 37 * i) for i in range(60)]
    rows = [[code, str(i % 7), "xy"[i % 2]] for i, code in enumerate(codes)]
    path = write_csv(tmp_path / "a.csv", rows, ["ticket", "size", "label"])
    found = look(open_table(path))
    assert [column.name for column in found.columns] == ["size"]
    assert [note.what for note in found.notes] == ["column 'ticket' left out"]
    words = [["unknown" if row[0].startswith("PC") else row[0], *row[1:]] for row in rows]
    path = write_csv(tmp_path / "b.csv", words, ["ticket", "size", "label"])
    code, message = code_of(lambda: look(open_table(path)))
    assert code == "mixed-types"
    assert "or --id 'ticket'" in message


def damage(path, kind):
    """Damage a file in a way that has a code of its own."""
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "truncated": whole[: len(whole) // 2]}[kind])
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
def test_empty_and_truncated_files_are_refused(tmp_path, suffix):
    pytest.importorskip("pyarrow")
    paths, _ = in_formats(tmp_path)
    path = paths[suffix[1:]]
    again = shutil.copy(path, tmp_path / f"again{suffix}")
    code, message = code_of(lambda: open_table(damage(path, "empty")))
    assert (code, message) == ("empty-table", f"{path} is empty: write it again")
    assert code_of(lambda: open_table(tmp_path / f"none{suffix}"))[0] == "missing-table"
    if suffix != ".csv":
        code, message = code_of(
            lambda: features(open_table(damage(tmp_path / again, "truncated")), [AGE])
        )
        assert code == "damaged-table"
        assert "write it again" in message


def test_an_encrypted_file_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    paths, _ = in_formats(tmp_path)
    content = paths["parquet"].read_bytes()
    paths["parquet"].write_bytes(content[:-4] + b"PARE")
    assert code_of(lambda: open_table(paths["parquet"]))[0] == "encrypted-table"


def test_a_table_without_rows_or_with_other_types_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"age": pa.array([], pa.float64())}), tmp_path / "none.parquet")
    assert (
        code_of(lambda: features(open_table(tmp_path / "none.parquet"), [AGE]))[0] == "empty-table"
    )
    nested = pa.table({"age": [[1.0], [2.0]], "label": ["x", "y"], "fare": [1.5, 2.5]})
    pq.write_table(nested, tmp_path / "nested.parquet")
    code, message = code_of(lambda: features(open_table(tmp_path / "nested.parquet"), [AGE]))
    assert code == "wrong-type"
    assert "column 'age': its cells are of the type list" in message
    notes = look(open_table(tmp_path / "nested.parquet")).notes
    assert [note.what for note in notes] == ["column 'age' left out"]


def test_without_the_extra_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    code, message = code_of(lambda: open_table(tmp_path / "a.parquet"), MissingDependencyError)
    assert code == "missing-dependency"
    assert "pip install 'fedunseen[arrow]'" in message


def test_parts_must_have_the_same_columns(tmp_path):
    write_csv(tmp_path / "part-000.csv", ROWS)
    write_csv(tmp_path / "part-001.csv", [row[:-1] for row in ROWS], HEADER[:-1])
    assert code_of(lambda: open_table(tmp_path))[0] == "parts-differ"


def test_a_dictionary_of_data_sets_says_what_is_for_tests(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = arrow_table(ROWS)
    about = {"info": {"features": {"deck": {"names": list("ABCDEF"), "_type": "ClassLabel"}}}}
    numbers = pa.array(["ABCDEF".index(row[-1]) for row in ROWS], pa.int64())
    table = table.set_column(8, "deck", numbers)
    table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    save_as_datasets_does(tmp_path / "both" / "train", table.slice(0, 200))
    save_as_datasets_does(tmp_path / "both" / "test", table.slice(200), 1)
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert is_table(tmp_path / "both")
    assert find_table(tmp_path) == tmp_path / "both"
    parts = list(Treatment((AGE,)).read(open_table(tmp_path / "both"), "deck", "split"))
    assert "".join(np.concatenate([part.labels for part in parts])) == "ABCDEF" * 40
    assert (
        np.concatenate([part.split for part in parts]).tolist() == ["train"] * 200 + ["test"] * 40
    )
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["../train"]}')
    assert code_of(lambda: open_table(tmp_path / "both"))[0] == "damaged-table"


@pytest.mark.slow
def test_what_datasets_itself_saves_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    saved = datasets.Dataset(arrow_table(ROWS)).shuffle(seed=0).select(range(100))
    saved.save_to_disk(tmp_path / "saved", num_shards=3)
    ages = features(open_table(tmp_path / "saved"), [AGE])
    np.testing.assert_array_equal(ages, features(of_frame(saved), [AGE]))


def test_a_large_table_is_a_memory_map(monkeypatch):
    from fedunseen.core import array_cache

    blocks = [np.full((10, 3), i, dtype=np.float32) for i in range(5)]
    assert MAPPED == 2**26
    joined = array_cache.joined_rows(iter(blocks))
    assert not isinstance(joined, Mapped)
    monkeypatch.setattr(array_cache, "MAPPED", 250)
    mapped = array_cache.joined_rows(iter(blocks))
    assert isinstance(mapped, Mapped)
    np.testing.assert_array_equal(mapped, joined)


def test_penguins_have_the_same_columns_in_csv_and_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    penguins = pytest.importorskip("palmerpenguins")
    frame = penguins.load_penguins_raw()
    frame.to_csv(tmp_path / "raw.csv", index=False)
    frame.assign(**{"Date Egg": pd.to_datetime(frame["Date Egg"])}).to_parquet(
        tmp_path / "raw.parquet"
    )
    first, second = (
        look(open_table(tmp_path / f"raw.{end}"), "Species") for end in ("csv", "parquet")
    )
    assert first == second
    kinds = {column.name: column.kind for column in first.columns}
    assert (kinds["Date Egg"], kinds["Sex"], kinds["Clutch Completion"]) == (
        "date",
        "category",
        "boolean",
    )
    one, other = (
        features(open_table(tmp_path / f"raw.{end}"), first.columns) for end in ("csv", "parquet")
    )
    np.testing.assert_array_equal(one, other)
