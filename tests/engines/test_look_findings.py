"""What a first look counts, against a slow reference, and what it warns about."""

import numpy as np
import pytest

from fedunseen.deploy.look.coordinator import ALL, ColumnPart, Look, Part
from fedunseen.deploy.look.findings import findings
from fedunseen.deploy.look.holdings import CELLS, bounds_of, cells_of, holdings_of
from fedunseen.deploy.look.question import Question, coarse
from mixed_tables import HEADER, arrow_table, passengers, write_csv


def column(numbers=(), parties=1, **kinds):
    numbers = np.asarray(numbers, dtype=float)
    cells = (
        np.bincount(cells_of(numbers), minlength=CELLS) if len(numbers) else np.zeros(CELLS, int)
    )
    return ColumnPart(parties, {"missing": 0, "numbers": len(numbers), **kinds}, cells)


def part(name="north", samples=None, only=0, columns=None, holders=None):
    samples = samples or {}
    holders = holders or dict.fromkeys(samples, 1)
    return Part(name, samples, holders, 0, 0, only, columns or {})


def look(*parts, classes=(), columns=(), own=None, masked=False):
    who = own or {each.name: Question((), ()) for each in parts}
    return Look(Question(classes, columns), masked, who, {}, parts)


def codes(*given, few=20, **more):
    return [found.code for found in findings(look(*given, **more), few)]


def test_each_number_is_in_one_cell():
    rng = np.random.default_rng(0)
    drawn = rng.choice([-1, 1], 500) * 10.0 ** rng.uniform(-9, 12, 500)
    numbers = np.concatenate([drawn, [0.0, 1.0, -1.0, 1e-6, 1e9, -1e9, np.finfo(float).max]])
    for number, cell in zip(numbers, cells_of(numbers), strict=True):
        low, high = bounds_of(int(cell))
        assert low <= number <= high
        assert 0 <= cell < CELLS
    order = np.argsort(numbers)
    assert (np.diff(cells_of(numbers)[order]) >= 0).all()


def test_quantiles_are_those_of_the_numbers():
    numbers = 10 ** np.random.default_rng(1).uniform(1, 3, 5000)
    true = np.quantile(numbers, [0.1, 0.5, 0.9])
    np.testing.assert_allclose(column(numbers).quantiles, true, rtol=0.05)
    np.testing.assert_allclose(column(-numbers).quantiles, -true[::-1], rtol=0.05)
    assert column([0.0] * 9).quantiles == (0.0, 0.0, 0.0)
    assert column().quantiles is None


def test_counts_are_the_same_from_a_csv_and_a_parquet_file(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'fedunseen[arrow]'")
    rows = passengers(200)
    for name in ("text", "typed"):
        (tmp_path / name).mkdir()
    write_csv(tmp_path / "text" / "t.csv", rows)
    parquet.write_table(arrow_table(rows), tmp_path / "typed" / "t.parquet")
    one, other = (holdings_of(tmp_path / name, "deck") for name in ("text", "typed"))
    assert one.samples == other.samples
    assert one.samples["A"] == sum(row[-1] == "A" for row in rows)
    for name in HEADER[:-1]:
        assert one.columns[name].kinds == other.columns[name].kinds, name
        np.testing.assert_array_equal(one.columns[name].cells, other.columns[name].cells)
    age = HEADER.index("age")
    assert one.columns["age"].kinds["missing"] == sum(row[age] == "" for row in rows)
    assert one.columns["boarded"].kinds["dates"] == sum(i % 31 != 0 for i in range(200))


def test_counts_are_rounded_down():
    assert coarse(np.array([0, 4, 5, 9, 10]), 5).tolist() == [0, 0, 5, 5, 10]


CLASHES = {
    ("Polar bear", "polar_bear"): True,
    ("Polar bear", "polar bears"): True,
    ("Chinstrap penguin", "Chinstrap pengiun"): True,
    ("type-1", "Type 1"): True,
    ("type 1", "type 2"): False,
    ("cat", "bat"): False,
}


@pytest.mark.parametrize(("names", "clash"), CLASHES.items(), ids=str)
def test_names_that_may_be_one_are_found(names, clash):
    first, second = names
    parts = part("north", {first: 50}), part("south", {second: 50})
    own = {"north": Question((), ()), "south": Question((second,), ())}
    assert codes(*parts, classes=(first,), own=own) == ["class-clash"] * clash
    assert codes(*parts, classes=names) == []  # who lists both means two


def test_classes_of_few_samples_are_found():
    held = part(samples={"a": 15, "b": 20})
    assert codes(held, classes=("a", "b")) == ["one-party-few-samples"]
    assert codes(held, classes=("a", "b"), few=15) == []
    assert codes(held, part("south", {"a": 5}), classes=("a", "b")) == []  # of two parties
    assert codes(held, classes=("a", "b", "c"), few=1) == ["class-without-samples"]
    assert codes(part(ALL, {"a": 15}, holders={"a": 1}), classes=("a",), masked=True) == [
        "one-party-few-samples"
    ]


def test_other_units_are_found():
    metres, feet = np.linspace(1.5, 2.0, 50), np.linspace(4.9, 6.6, 50)
    apart = part("north", columns={"h": column(metres)}), part("south", columns={"h": column(feet)})
    assert codes(*apart, columns=("h",)) == ["range-factor"]
    both = part(ALL, columns={"h": column([*metres, *feet], parties=2)})
    two = {"north": Question((), ()), "south": Question((), ())}
    assert codes(both, columns=("h",), own=two, masked=True) == ["two-groups"]
    alike = part("south", columns={"h": column(metres * 1.1)})
    assert codes(apart[0], alike, columns=("h",)) == []


def test_columns_that_differ_are_found():
    texts = part("south", columns={"h": column(texts=40)})
    numbers = part("north", columns={"h": column([1.0] * 40)})
    assert codes(numbers, texts, columns=("h",)) == ["mixed-kinds"]
    assert codes(part(columns={"h": column([1.0] * 10, missing=30)}), columns=("h",)) == [
        "mostly-missing"
    ]
    gone = part("south", columns={"h": column(parties=0)})
    assert codes(numbers, gone, columns=("h",)) == ["missing-column"]


def test_samples_without_a_class_alone_are_found():
    assert codes(part(only=1)) == ["only-unlabelled"]
    assert codes(part(ALL, only=2), masked=True) == ["only-unlabelled"]
