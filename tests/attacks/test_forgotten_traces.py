"""What a model that has forgotten a party still says of its samples: nothing, or what its output
names.
"""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedunseen import Benchmark, ClassSpace, Experiment, ZeroShotClassifier, run
from fedunseen.cli.learn import say_forgotten
from fedunseen.data.benchmarks.folder import write_folder
from fedunseen.evaluation.misplaced import misplaced_files
from fedunseen.experiment.assemble import load_data, partition_of
from fedunseen.experiment.forget import forget, write_removal
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.pages.report import write_report
from mixed_tables import HEADER, describe, passengers, write_csv
from same import content, same

# Twelve classes of a table with mixed units. Client 1 holds one sample with an extreme value of
# each feature.
RNG = np.random.default_rng(0)
CLASSES, WIDTH, EACH = 12, 5, 14
SEEN = CLASSES - 2
EXTREME = np.array([812.2537, -907.5121, 655.7519, 721.0713, -1033.2507])
TABLE = RNG.random((CLASSES, 6))
LABELS = np.repeat(np.arange(CLASSES), EACH)
ROWS = (TABLE[LABELS] @ RNG.normal(size=(6, WIDTH)) * [1, 5, 2, 9, 3]).astype(np.float32)
ROWS += 0.3 * RNG.normal(size=ROWS.shape).astype(np.float32)
TEST = (LABELS >= SEEN) | (np.arange(len(LABELS)) % 7 == 6)
GONE = 1
NAMES = [f"class {c}" for c in range(CLASSES)]
ALONE = {"evaluation.embedding": False, "evaluation.theory": False, "run.device": "cpu"}


@pytest.fixture(autouse=True)
def single_thread(one_thread):
    """Every model here is small."""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Return an experiment on the table, whose client 1 holds the extremes; ``make(settings)``."""
    folder = tmp_path_factory.mktemp("table")
    columns = tuple(f"a{i}" for i in range(6))
    sets = range(SEEN), range(SEEN - 2, SEEN), range(SEEN, CLASSES)
    ClassSpace(tuple(NAMES), TABLE, columns, *sets).save(folder / "classes.csv")
    split = np.where(TEST, "test", "train")
    rows = ROWS.copy()
    tree = {
        "data": {"name": "folder", "root": str(folder)},
        "partition": {"kind": "iid", "clients": 4},
        "method": {"name": "gaussian"},
        "strategy": {"name": "fedavg"},
    }

    def make(settings=None):
        return Experiment.from_dict(tree, {**ALONE, **(settings or {})})

    np.savez(folder / "features.npz", features=rows, labels=LABELS, split=split)
    held = partition_of(make(), load_data(make(), 0), 0).clients[GONE]
    rows[held[:WIDTH], range(WIDTH)] = EXTREME
    np.savez(folder / "features.npz", features=rows, labels=LABELS, split=split)
    return make


def reaches(statistics):
    """Return how far the numbers of a scaler's statistics and the ranges of its quantization are
    from 0.
    """
    found = [np.abs(v[np.isfinite(v)]).max() for v in statistics.values() if np.isfinite(v).any()]
    if "quantize.step" in statistics:
        levels = 2 ** (int(statistics["quantize.bits"][0]) - 1) - 1
        found.append(
            (np.abs(statistics["quantize.offset"]) + levels * statistics["quantize.step"]).max()
        )
    return max(map(float, found))


def holds_extremes(path):
    """Say whether a directory or a file has a number that only the extremes explain, in any
    tensor.
    """
    files = path.rglob("*.safetensors") if path.is_dir() else [path]
    for file in files:
        for name, value in load_file(file).items():
            if not value.is_floating_point() or "quantize." in name:
                continue  # whole numbers are none; ranges are below
            numbers = value.double().abs().numpy().reshape(-1, 1)
            if np.isclose(numbers, np.abs(EXTREME), rtol=1e-6).any():
                return True
        tensors = {n.removeprefix("scaling/"): v.numpy() for n, v in load_file(file).items()}
        scales = {n: v for n, v in tensors.items() if n[0].isdigit() or n.startswith("quantize.")}
        if scales and reaches(scales) > 400:
            return True
    return False


WAYS = {
    "ranges of features": {"data.features": []},
    "min-max": {"data.features": ["min-max"]},
    "standard": {"data.features": ["standard"]},
    "centre": {"data.features": ["centre", "l2"]},
    "photos": {},
    "unit length": {"data.features": ["l2"]},
    "ridge": {"method.name": "ridge", "data.features": []},
    "eszsl": {"method.name": "eszsl", "data.features": []},
    "floats": {"data.quantization": "none", "data.features": ["min-max"]},
    "masked": {"data.features": [], "privacy.aggregation": "masked"},
    "totals": {"data.features": [], "method.retention": "total"},
}
HIDDEN = ("standard", "centre", "photos", "unit length")
"""Ways in which no extreme can be read from the run before."""

QUICK = ("ranges of features",)


def without_notes(path):
    """Return all of a run directory but what says that something was removed."""
    found = content(path)
    for name in ("forgotten", "stays"):
        found["result.json"].pop(name, None)
    return found


@pytest.mark.parametrize(
    "way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]
)
def test_a_run_without_a_party_has_the_bits_of_one_that_never_had_it(way, experiment, tmp_path):
    done = run(experiment(WAYS[way]), tmp_path / "run")
    left = forget(done, str(GONE), tmp_path / "left")
    never = run(experiment({**WAYS[way], "partition.without": [GONE]}), tmp_path / "never")
    assert without_notes(left.path) == without_notes(never.path)
    assert left.result["stays"] == []
    assert not same(left, done)
    assert holds_extremes(done.path) == (way not in HIDDEN)  # the search finds what is there
    assert not holds_extremes(left.path)
    assert not any(str(abs(value)) in write_report(left).read_text("utf-8") for value in EXTREME)


@pytest.mark.slow
def test_a_run_without_a_party_does_not_depend_on_its_samples(experiment, tmp_path):
    """The samples of a client that never takes part may be any."""
    settings = {"data.features": [], "partition.without": [GONE]}
    folder = experiment().data.root
    never = run(experiment(settings), tmp_path / "never")
    arrays = dict(np.load(folder / "features.npz"))
    held = partition_of(experiment(), load_data(experiment(), 0), 0).clients[GONE]
    other = tmp_path / "other"
    other.mkdir()
    (other / "classes.csv").write_bytes((folder / "classes.csv").read_bytes())
    arrays["features"][held] = 1e4
    np.savez(other / "features.npz", **arrays)
    changed = run(experiment({**settings, "data.root": str(other)}), tmp_path / "changed")
    assert same(changed, never)
    assert changed.result["calibration_factor"] == never.result["calibration_factor"]
    assert changed.scaler.statistics.keys() == never.scaler.statistics.keys()
    for name, value in never.scaler.statistics.items():
        np.testing.assert_array_equal(changed.scaler.statistics[name], value)


@pytest.mark.slow
def test_removed_samples_leave_nothing_either(experiment, tmp_path):
    settings = {"data.features": []}
    done = run(experiment(settings), tmp_path / "run")
    left = forget(done, str(GONE), tmp_path / "left", range(25))
    parted = {"partition.without_samples": {str(GONE): list(range(25))}}
    never = run(experiment({**settings, **parted}), tmp_path / "never")
    assert without_notes(left.path) == without_notes(never.path)
    assert (left.result["stays"], left.result["forgotten"]) == ([], ["25 samples of 1"])
    assert not holds_extremes(left.path)
    less = forget(left, str(GONE), tmp_path / "less", range(25, 28), consent=True)
    assert less.experiment.partition.without_samples == {str(GONE): tuple(range(28))}


def test_a_learning_rate_that_the_data_chose_is_chosen_again(experiment, tmp_path):
    trained = {"method.name": "fedzsl", "strategy.rounds": 2, "evaluation.selection": "last"}
    trained |= {"data.features": [], "run.forgettable": True, "partition.join": {str(GONE): 1}}
    done = run(experiment(trained), tmp_path / "run")
    never = run(experiment({**trained, "partition.without": [GONE]}), tmp_path / "never")
    assert done.experiment.method.lr != never.experiment.method.lr
    left = forget(done, str(GONE), tmp_path / "left")
    assert left.experiment.method.lr == never.experiment.method.lr
    assert same(left, never)
    assert left.result["rounds_trained_again"] == 2  # the kept state had the party's rate


TRAINED = {
    "method.name": "fedzsl", "method.hidden": [], "method.lr": 0.05, "data.features": [],
    "evaluation.selection": "last", "strategy.rounds": 3, "strategy.local_epochs": 1, "run.forgettable": True,
}  # fmt: skip
JOINS = {"partition.join": {str(GONE): 2}}
CHOSEN = {**JOINS, "evaluation.selection": "validation"}
NOISY = {"privacy.name": "client-level", "privacy.clip": 1.0, "privacy.noise": 1.0}
STATES = {  # settings, and the rounds that are trained again
    "joins": (JOINS, 1),
    "drawn before it joins": ({**JOINS, "strategy.fraction": 0.7}, 1),
    "starts without it": ({**JOINS, "method.start": "closed-form"}, 1),
    "might have been drawn": ({"strategy.fraction": 0.5, "run.seed": 6}, 3),
    "starts with it": ({"strategy.fraction": 0.5, "run.seed": 6, "method.start": "closed-form"}, 3),
    "offset and round": (CHOSEN, 3),
    "settings": ({**CHOSEN, "evaluation.choose": {"method.kl": [0.0, 1.0, 30.0]}}, 3),
    "noise": ({**JOINS, **NOISY, "privacy.noise_from": "seed"}, 3),
    "attack": ({**JOINS, "attack.name": "label-flip", "attack.clients": [0], "attack.rounds": "1-2"}, 3),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:privacy")
@pytest.mark.parametrize("way", STATES)
def test_a_state_is_kept_only_where_nothing_of_the_client_is_in_it(way, experiment, tmp_path):
    settings, again = STATES[way]
    done = run(experiment({**TRAINED, **settings}), tmp_path / "run")
    left = forget(done, str(GONE), tmp_path / "left")
    never = run(
        experiment({**TRAINED, **settings, "partition.without": [GONE]}), tmp_path / "never"
    )
    kept, wanted = without_notes(left.path), without_notes(never.path)
    assert kept["result.json"].pop("rounds_trained_again") == again
    assert kept == wanted
    assert left.result["stays"] == []
    assert not same(left, done)


@pytest.mark.slow
def test_where_the_others_cannot_run_alone_statistics_are_subtracted(experiment, tmp_path):
    """Three parties mask their sums, two cannot: what was fitted to the third is named."""
    settings = {"data.features": [], "privacy.aggregation": "masked", "partition.clients": 3}
    done = run(experiment(settings), tmp_path / "run")
    with pytest.warns(UserWarning, match="so statistics are subtracted: privacy.aggregation"):
        left = forget(done, str(GONE), tmp_path / "left")
    assert left.result["stays"] == ["quantization", "calibration", "confidence"]
    counts = [
        int(RunDirectory(one.path).newest_checkpoint(torch.device("cpu")).params["count"].sum())
        for one in (done, left)
    ]
    held = partition_of(done.experiment, load_data(done.experiment, 0), 0).clients
    assert counts == [sum(map(len, held)), len(held[0]) + len(held[2])]


def removal_of(done, folder, kept=0):
    """Write the statistics of all samples of client 1, or of all but some, as a party would; return
    the file.
    """
    benchmark = load_data(done.experiment, 0)
    held = partition_of(done.experiment, benchmark, 0).clients[GONE][kept:]
    write_folder(folder, benchmark, held, "train")
    write_removal(done, folder, file := folder / "removal.safetensors")
    return file


@pytest.mark.slow
def test_a_subtraction_names_what_stays(experiment, tmp_path, capsys):
    done = run(experiment({"data.features": ["min-max"]}), tmp_path / "run")
    (tmp_path / "party").mkdir()
    file = removal_of(done, tmp_path / "party")
    left = forget(done, str(GONE), tmp_path / "left", removal=file)
    assert left.result["stays"] == ["scaling", "quantization", "calibration", "confidence"]
    assert holds_extremes(left.path)  # so it must be said
    say_forgotten(left, True)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["stays"] == left.result["stays"]
    assert (
        "stays: the range of each feature (data.quantization) was fitted with what was" in shown.err
    )
    page = (left.path / "report.html").read_text("utf-8")
    assert "the offset, the round and the settings were chosen with what was removed" in page


@pytest.mark.slow
def test_a_subtraction_says_that_few_samples_of_a_class_are_left(experiment, tmp_path):
    """Such as one that was deleted before its party left: the class's total is its features."""
    done = run(experiment({"partition.kind": "pccd"}), tmp_path / "run")
    (tmp_path / "party").mkdir()
    file = removal_of(done, tmp_path / "party", kept=1)
    assert "few" in forget(done, str(GONE), tmp_path / "left", removal=file).result["stays"]


@pytest.mark.slow
def test_a_subtraction_copies_no_file_but_those_that_it_names(experiment, tmp_path):
    """Such as the opened total of masked statistics, and what a later version may add."""
    done = run(experiment({}), tmp_path / "run")
    for name in (
        "secagg/total.safetensors",
        "confidence/counts.safetensors",
        "later/file",
        "later.json",
    ):
        (done.path / name).parent.mkdir(exist_ok=True)
        (done.path / name).write_text("of all parties")
    (done.path / "added-classes.safetensors").write_bytes(b"kept")
    (tmp_path / "party").mkdir()
    left = forget(done, str(GONE), tmp_path / "left", removal=removal_of(done, tmp_path / "party"))
    names = {str(file.relative_to(left.path)) for file in left.path.rglob("*") if file.is_file()}
    assert names == {
        "manifest.json", "metrics.jsonl", "result.json", "classes.csv", "checkpoints/000001.safetensors",
        *(f"{name}.safetensors" for name in ("model", "evaluation", "added-classes")),
    }  # fmt: skip
    held = partition_of(done.experiment, load_data(done.experiment, 0), 0).clients
    counts = load_file(left.path / "evaluation.safetensors")["client_counts"].sum(1).tolist()
    assert counts == [0 if client == GONE else len(rows) for client, rows in enumerate(held)]


@pytest.mark.parametrize(
    ("features", "masked"),
    [
        ([], "plain"),
        *(
            pytest.param(features, masked, marks=pytest.mark.slow)
            for features, masked in (
                (["min-max", "l2"], "masked"),
                (["min-max"], "plain"),
                (["min-max", "l2"], "plain"),
                ([], "masked"),
                (["min-max"], "masked"),
            )
        ),
    ],
)
def test_no_sample_moves_stated_bounds(features, masked, experiment, tmp_path):
    """A subtraction alone then has the bits of a run without the party."""
    bounds = [[-1200.0, 1200.0]] * WIDTH
    settings = {"data.features": features, "data.bounds": bounds, "evaluation.selection": "last"}
    settings |= {"privacy.aggregation": masked}
    done = run(experiment(settings), tmp_path / "run")
    (tmp_path / "party").mkdir()
    file = removal_of(done, tmp_path / "party")
    left = forget(done, str(GONE), tmp_path / "left", removal=file)
    never = run(experiment({**settings, "partition.without": [GONE]}), tmp_path / "never")
    assert left.result["stays"] == ["confidence"]
    assert left.result["sums_sha256"] == never.result["sums_sha256"] != done.result["sums_sha256"]
    assert same(left, never)
    for name, value in never.scaler.statistics.items():
        np.testing.assert_array_equal(left.scaler.statistics[name], value)


def test_pictures_of_a_party_that_left_are_not_named():
    rng, labels = np.random.default_rng(1), np.repeat([0, 1, 2], 30)
    space = ClassSpace(("a", "b", "c"), np.eye(3), ("x", "y", "z"), [0, 1], [], [2])
    rows = (8 * np.eye(3)[labels] + rng.normal(size=(90, 3))).astype(np.float32)
    rows[:6] = 8 * np.eye(3)[1] + rng.normal(size=(6, 3))  # of class a, in the midst of b
    made = Benchmark(
        "photos", space, rows, labels, np.arange(60), [], np.arange(60, 90), part=True,
        pictures=np.zeros((90, 1, 2, 2)), files=tuple(f"{i}.png" for i in range(90)),
    )  # fmt: skip
    (group,) = misplaced_files(made)["misplaced"]
    assert set(group["files"]) >= {f"{i}.png" for i in range(6)}
    assert "misplaced" not in misplaced_files(made.without(np.arange(6)))


# The classifier.
HELD = ~TEST
PARTY = np.array(["north", "south", "west"])[np.arange(HELD.sum()) % 3]
X = ROWS[HELD].copy()
X[np.flatnonzero(PARTY == "south")[:WIDTH], range(WIDTH)] = EXTREME
Y = np.array(NAMES)[LABELS[HELD]]
DESCRIBED = dict(zip(NAMES, TABLE.tolist(), strict=True))
CHOOSES_KERNEL = pytest.mark.slow  # six fits of 1,024 features each
FITS = [
    pytest.param({}, marks=CHOOSES_KERNEL),
    {"features": ("standard",)},
    {"features": ("min-max",)},
    {"features": ("centre", "l2")},
    {"method": "ridge", "features": ()},
    {"method": "eszsl", "calibration": 0.25, "features": ()},
    pytest.param({"method_params": {"retention": "total"}}, marks=CHOOSES_KERNEL),
    {"method_params": {"retention": "total"}, "features": ("min-max",)},
]


def fitted(stays=None, **settings):
    """Fit a classifier to the samples of all parties, or of those that stay."""
    stays = np.ones(len(Y), dtype=bool) if stays is None else stays
    model = ZeroShotClassifier(**settings)
    return model.fit(X[stays], Y[stays], classes=DESCRIBED, groups=PARTY[stays])


def saved(model, path):
    """Return the tensors and the metadata of what a classifier writes."""
    model.save(path)
    with safe_open(path, "pt") as file:
        return load_file(path), json.loads(file.metadata()["fedunseen model"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:method = ")
@pytest.mark.parametrize("settings", FITS, ids=str)
def test_a_classifier_without_a_party_has_the_bits_of_one_that_never_had_it(settings, tmp_path):
    model, stays = fitted(**settings), PARTY != "south"
    left, never = model.forget("south"), fitted(stays, **settings)
    tensors, about = saved(left, tmp_path / "left")
    wanted, of_never = saved(never, tmp_path / "never")
    assert about == of_never
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], value) for name, value in wanted.items())
    np.testing.assert_array_equal(left.scores(ROWS), never.scores(ROWS))
    assert left.calibration_ == never.calibration_
    assert left.stays_ == ()
    assert not np.array_equal(model.scores(ROWS), never.scores(ROWS))
    assert not holds_extremes(tmp_path / "left")
    saved(model, tmp_path / "model")
    readable = settings.get("features", ()) in ((), ("min-max",))
    assert holds_extremes(tmp_path / "model") == readable
    np.testing.assert_array_equal(
        left.forget("west").scores(ROWS), fitted(PARTY == "north", **settings).scores(ROWS)
    )


@pytest.mark.slow
def test_unlabelled_samples_of_a_party_leave_with_it():
    names = [None if i % 9 == 0 else name for i, name in enumerate(Y)]
    stays = PARTY != "south"
    model = ZeroShotClassifier(features=("l2",)).fit(X, names, classes=DESCRIBED, groups=PARTY)
    left = model.forget("south")
    kept = [name for name, stay in zip(names, stays, strict=True) if stay]
    never = ZeroShotClassifier(features=("l2",))
    never.fit(X[stays], kept, classes=DESCRIBED, groups=PARTY[stays])
    np.testing.assert_array_equal(left.scores(ROWS), never.scores(ROWS))
    np.testing.assert_array_equal(left.soft_counts_, never.soft_counts_)


def test_no_copy_on_disk_has_the_samples(tmp_path):
    model = fitted(features=("min-max",))
    row = X[3].astype(np.float32).tobytes()
    assert row in pickle.dumps(X.astype(np.float32))  # the search finds one
    model.save(tmp_path / "model", statistics=True)
    for written in (pickle.dumps(model), (tmp_path / "model").read_bytes()):
        assert row not in written
        assert X[3].astype(np.float64).tobytes() not in written


@pytest.mark.slow
@pytest.mark.parametrize("way", ["unpickled", "loaded"])
def test_a_classifier_without_its_samples_names_what_stays(way, tmp_path):
    def again(model):
        if way == "unpickled":
            return pickle.loads(pickle.dumps(model))  # noqa: S301  # its own
        model.save(tmp_path / "model", statistics=True)
        return ZeroShotClassifier.load(tmp_path / "model")

    with pytest.warns(UserWarning, match="what was removed: fit again to remove it"):
        left = again(fitted(features=("min-max",))).forget("south")
    assert left.stays_ == ("scaling", "quantization", "calibration", "confidence")
    left.save(tmp_path / "left")
    assert ZeroShotClassifier.load(tmp_path / "left").stays_ == left.stays_
    # Where nothing else is fitted, a subtraction has the bits of a fit without the party.
    plain = {"features": ("l2",), "calibration": 0.25}
    left = again(fitted(**plain)).forget("south")
    assert left.stays_ == ("confidence",)
    never = fitted(PARTY != "south", **plain)
    np.testing.assert_array_equal(left.scores(ROWS), never.scores(ROWS))


@pytest.mark.slow
def test_a_classifier_names_columns_that_it_has_found_with_a_party(tmp_path):
    pd = pytest.importorskip("pandas")
    ages = np.r_[np.linspace(20, 60, 59), 113.7]
    ports = np.where(np.arange(60) < 45, "Dublin", "Atlantis")  # of the last party alone
    frame = pd.DataFrame({"age": ages, "port": ports})
    names = np.array(["low", "high", "mid"] * 20)
    holders = np.repeat(["north", "west", "mid", "south"], 15)
    model = ZeroShotClassifier().fit(frame, names, groups=holders)
    assert model.forget("south").stays_ == ()  # fitted again
    model.save(tmp_path / "model", statistics=True)
    with pytest.warns(UserWarning, match=r"data\.columns"):
        left = ZeroShotClassifier.load(tmp_path / "model").forget("south")
    assert "columns" in left.stays_
    assert left.columns_[0].bounds[1] == 113.7  # the trace is there
    assert "Atlantis" in left.columns_[1].values


@pytest.mark.slow
def test_a_run_names_columns_that_may_be_of_a_party(tmp_path):
    """`init` measures them on all samples, and an experiment keeps what it states."""
    folder = describe(tmp_path / "table")
    rows = passengers(240)
    rows[6][HEADER.index("age")] = "113.7"
    write_csv(folder / "people.csv", rows, HEADER)
    age = {"name": "age", "kind": "number", "bounds": [31.5, 113.7], "fill": 45}
    fare = {"name": "fare", "kind": "number", "bounds": [0, 100]}
    data = {"name": "table", "root": str(folder), "label": "deck", "columns": [age, fare]}
    tree = {
        "data": {**data, "features": ["min-max"], "bounds": [[0, 1]]},
        "partition": {"kind": "iid", "clients": 3},
        "method": {"name": "gaussian"},
    }
    done = run(Experiment.from_dict(tree, ALONE), tmp_path / "run")
    left = forget(done, "0", tmp_path / "left")
    assert left.result["stays"] == ["columns"]
    assert "113.7" in (tmp_path / "left" / "manifest.json").read_text("utf-8")
