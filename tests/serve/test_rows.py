"""A run from a table as a service: rows by the names of columns, tables, and the page."""

import io
import os

import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.experiment.init_template import TableOptions, suggest
from mixed_tables import HEADER, arrow_table, describe, passengers, write_csv
from pages import says

ROWS = passengers()


@pytest.fixture(scope="module")
def ship(tmp_path_factory):
    """A run from a table of numbers, categories, booleans and dates."""
    place = tmp_path_factory.mktemp("ship")
    describe(place / "ship")
    table, file = write_csv(place / "ship.csv", ROWS), place / "ship.toml"
    file.write_text(suggest(table, file, options=TableOptions(label="deck")).text, "utf-8")
    return run(Experiment.load(file), place / "run").path


def csv_of(rows, header=HEADER):
    return "\n".join(",".join(line) for line in (header, *rows)).encode()


def parquet_of(rows, header=HEADER):
    file = io.BytesIO()
    pytest.importorskip("pyarrow.parquet").write_table(arrow_table(rows, header), file)
    return file.getvalue()


def arrow_of(rows, compression, stream=False):
    pa = pytest.importorskip("pyarrow")
    table = arrow_table(rows)
    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(file, table.schema, options=options) as writer:
        writer.write_table(table)
    return file.getvalue()


@pytest.mark.slow
def test_rows_csv_parquet_and_arrow_get_the_same_answers(client, ship):
    asked = client(ship)
    rows = [dict(zip(HEADER, row, strict=True)) for row in ROWS[:5]]
    sent = [
        {"json": {"features": rows}},
        {"files": {"files": ("a.csv", csv_of(ROWS[:5]))}},
        {"files": {"files": ("a.parquet", parquet_of(ROWS[:5]))}},
        {"files": {"files": ("a.feather", arrow_of(ROWS[:5], "lz4"))}},
        {"files": {"files": ("a.arrow", arrow_of(ROWS[:5], "zstd", stream=True))}},
        {"files": {"files": ("a.ipc", arrow_of(ROWS[:5], None))}},
    ]
    answers = [asked.post("/predict", **request).json()["answers"] for request in sent]
    ranked = [[one["classes"] for one in answer] for answer in answers]
    assert len(ranked[0]) == 5
    assert ranked[1:] == ranked[:1] * 5
    assert [one["input"] for one in answers[2]][:2] == ["a.parquet[0]", "a.parquet[1]"]
    wanted = load_run(ship).predict(rows, top=1)
    assert [ranking[0]["name"] for ranking in ranked[0]] == [one.name for (one,) in wanted]


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("a.csv", csv_of(ROWS[:2], [*HEADER[:2], "Age", *HEADER[3:]]), "missing-column",
         "a.csv has no column 'age' (did you mean 'Age'?)"),
        ("a.csv", csv_of([[*ROWS[1][:2], "old", *ROWS[1][3:]]]), "wrong-type", "a.csv, line 2, column 'age': "),
        ("a.csv", csv_of([]), "empty-table", "a.csv has a header, but no row"),
        ("a.csv", b"", "data", "a.csv is empty"),
        ("a.parquet", b"PAR1", "damaged-table", "a.parquet is damaged"),
        ("a.xlsx", b"PK", "no-table", "a.xlsx is no table: send CSV, Parquet or Arrow"),
        ("a.csv", csv_of(ROWS * 5), "data", "there are 1200 samples: send at most 1000 at a time"),
        ("a.parquet", lambda: parquet_of(ROWS * 5), "data", "there are 1200 samples"),
        ("a.arrow", lambda: arrow_of(ROWS * 5, "lz4"), "data", "there are 1200 samples"),
        ("a.arrow", lambda: arrow_of(ROWS, "lz4")[:-30], "damaged-table", "a.arrow is damaged"),
        ("a.feather", b"", "data", "a.feather is empty"),
        ("a.parquet", lambda: parquet_of(ROWS[:3], [*HEADER[:2], "Age", *HEADER[3:]]), "missing-column",
         "a.parquet has no column 'age' (did you mean 'Age'?)"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_asked_about_is_refused(client, ship, name, content, code, words):
    content = content() if callable(content) else content
    reply = client(ship).post("/predict", files={"files": (name, content)})
    said = reply.json()
    assert reply.status_code in (413, 422)
    assert said["code"] == code
    assert words in said["detail"]
    assert "/" not in said["detail"]  # no place of this machine


def test_a_row_without_a_column_is_refused(client, ship):
    reply = client(ship).post("/predict", json={"features": [{"fare": 3}]})
    assert (reply.status_code, reply.json()["code"]) == (422, "missing-column")
    many = client(ship).post("/predict", json={"features": [{"fare": 3}] * 1001})
    assert (many.status_code, many.json()["detail"]) == (
        413, "there are 1001 samples: send at most 1000 at a time",
    )  # fmt: skip


@pytest.mark.slow
def test_what_a_table_unpacks_to_is_bounded(client, ship):
    pa = pytest.importorskip("pyarrow")
    file = io.BytesIO()
    texts = pa.table({name: [f"{i} {'x' * 1_000_000}" for i in range(100)] for name in HEADER[:1]})
    pytest.importorskip("pyarrow.parquet").write_table(
        texts, file, use_dictionary=False, compression="zstd"
    )
    assert len(file.getvalue()) < 40_000
    reply = client(ship).post("/predict", files={"files": ("a.parquet", file.getvalue())})
    assert (reply.status_code, reply.json()["code"]) == (413, "table-too-large")
    assert reply.json()["detail"] == (
        "a.parquet takes too much memory or time to read: send fewer rows, or a CSV file"
    )


def test_model_names_the_columns_for_a_form(client, ship):
    about = client(ship).get("/model").json()
    assert about["takes"] == "rows"
    assert [column["kind"] for column in about["columns"]] == [
        "number", "number", "category", "boolean", "date", "boolean",
    ]  # fmt: skip
    assert about["columns"][2]["values"] == ["Cherbourg", "Queenstown", "Southampton"]
    assert set(about["columns"][0]) == {"name", "kind", "bounds"}


def test_the_page_takes_a_row_and_a_table(served, opened, ship, tmp_path):
    page = opened(served(ship), viewport={"width": 400, "height": 800})
    page.locator("#cells [data-name=age]").fill("35.2")
    page.locator("#cells [data-name=fare]").fill("88")
    page.locator("#cells [data-name=port]").select_option("Cherbourg")
    page.locator("#cells [data-name=boarded]").fill("1912-04-04")
    page.locator("#cells [data-name=crew]").select_option("no")
    page.get_by_role("button", name="Recognize").click()
    says(page, "#best", "A — a class seen in training")
    assert not page.locator("#many").is_visible()
    if folder := os.environ.get("FEDUNSEEN_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/row-400.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    table = write_csv(tmp_path / "few.csv", ROWS[:9])
    page.set_input_files("#file", table)
    says(page, "#many-words", "9 rows. Choose one to see it above.")
    if folder := os.environ.get("FEDUNSEEN_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/rows-400.png", full_page=True)
    first = load_run(ship).predict(table, top=1)
    page.locator("#files button").nth(4).click()
    says(page, "#best b", first[4][0].name)
    assert "(row 5 of 9)" in page.locator("#best").text_content()
    page.set_input_files("#file", write_csv(tmp_path / "odd.csv", [["9"]], ["age"]))
    says(
        page,
        "#input-error",
        "odd.csv has no column 'fare': add it, or rename the one that has its cells",
    )
    assert not page.locator("#many").is_visible()
