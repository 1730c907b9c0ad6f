"""The file of a model: every method scores with the same bits again, older files load, others are
refused.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedunseen import Experiment, Model, ZeroShotClassifier, load_model, load_run, run
from fedunseen.core import files
from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.core.model_file import DAMAGED, NEWER
from fedunseen.core.registry import choosable, find, names, package_names
from fedunseen.core.removed_settings import REMOVED, without_removed
from fedunseen.experiment.forget import forget
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.episodic import Episodic
from same import same, write_older

KEPT = Path(__file__).parent / "kept"
FEW_SHOT = str(Path(__file__).parents[1] / "digits-maml.toml")
SHORT = {"strategy.rounds": 1, "evaluation.embedding": False}
DIGITS = {
    **SHORT,
    "data.train_per_class": 6,
    "data.test_per_class": 2,
    "evaluation.selection": "last",
    "partition.clients": 2,
}
SURE = {"data.train_per_class": 12, "data.test_per_class": 4, "method.calibration": True}
IMAGES = ("digit-pairs-conv", DIGITS)
GENERATED = ("digit-pairs-clswgan", {**DIGITS, "method.hidden": 16, "method.batch_size": 32})
EPISODES = (FEW_SHOT, {**SHORT, "method.episodes": 2, "evaluation.episodes": 4})
RUNS = {
    "gaussian": ("digit-pairs-gaussian", DIGITS),
    "distzsl": ("digit-pairs-distzsl", DIGITS),
    "classifier": ("digit-pairs-classifier", DIGITS),
    **dict.fromkeys(("apn", "gem", "msdn", "svip"), IMAGES),
    **dict.fromkeys(("clswgan", "vaegan"), GENERATED),
    "free": (GENERATED[0], {**GENERATED[1], "strategy.shared": ["generator.*", "refine.*"]}),
    **dict.fromkeys(("maml", "maml-mi", "maml-mi-adv", "protonet"), EPISODES),
}
"""Method -> the experiment, and what makes it short. Others run as `digit-pairs` does, closed forms as
`digit-pairs-gaussian`.
"""


def trained(name, place):
    closed = issubclass(find("method", name), ClosedForm)
    preset, settings = RUNS.get(name, ("digit-pairs-gaussian" if closed else "digit-pairs", DIGITS))
    return run(Experiment.load(preset, {**settings, "method.name": name}), place / "run")


def random_rows(model, count=6):
    rows = np.random.default_rng(0).random((count, *model.sample_shape))
    return rows.astype(np.float32)


def answers(model):
    """Return what a model says of random samples, of which examples are shown where it needs
    them.
    """
    rows = random_rows(model)
    if not isinstance(model.method, Episodic):
        return model.scores(rows)
    shown = random_rows(model, 8)
    names = model.space.names[: model.method.settings.ways]
    examples = {name: shown[n : n + 1] for n, name in enumerate(names)}
    return np.array([[item.score for item in row] for row in model.rank(rows, examples=examples)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", package_names("method"))
def test_a_saved_model_answers_with_the_same_bits(name, tmp_path):
    model = trained(name, tmp_path).model
    model.save(tmp_path / "model")
    expected = answers(model)
    file = tmp_path / "run" / "model.safetensors"
    assert file.read_bytes() == (tmp_path / "model").read_bytes()
    for loaded in (load_model(file), load_model(tmp_path / "run")):
        np.testing.assert_array_equal(answers(loaded), expected)
        assert loaded.space.names == model.space.names
        assert loaded.calibration == model.calibration
    assert np.ptp(expected) > 0
    again = tmp_path / "again"
    load_model(tmp_path / "model").save(again)
    assert again.read_bytes() == (tmp_path / "model").read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_changed_run_has_one_file_of_its_model(tmp_path):
    done = run(Experiment.load("digit-pairs-gaussian", {**DIGITS, **SURE}), tmp_path / "run")
    shown = random_rows(done.model, 30)
    changed = {
        "learned": done.learn(examples={"new": shown[:3]}, out=tmp_path / "learned"),
        "adapted": done.adapt(shown, tmp_path / "adapted"),
        "left": forget(done, "0", tmp_path / "left"),
    }
    for name, changed_run in changed.items():
        loaded = load_model(tmp_path / name / "model.safetensors")
        assert loaded.sha256 == changed_run.model.sha256
        assert loaded.confidence is not None
        np.testing.assert_array_equal(
            loaded.probabilities(shown), load_run(tmp_path / name).model.probabilities(shown)
        )
        assert (name == "adapted") == same(changed_run.params, done.params)  # none was taken
        assert not (tmp_path / name / "scaling.safetensors").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_whose_model_was_in_several_files_answers_the_same(tmp_path):
    done = run(Experiment.load("digit-pairs-gaussian", {**DIGITS, **SURE}), tmp_path / "run")
    rows = random_rows(done.model)
    expected = done.model.probabilities(rows), done.model.unfamiliar(rows)
    write_older(done.path)
    with pytest.raises(DataError, match="is not the file of a model"):
        load_model(done.path / "model.safetensors")
    older = load_run(done.path)
    model = older.model
    np.testing.assert_array_equal(model.probabilities(rows), expected[0])
    np.testing.assert_array_equal(model.unfamiliar(rows), expected[1])
    assert model.features_from == done.model.features_from
    learned = older.learn(examples={"new": rows[:2]}, out=tmp_path / "learned")  # is written anew
    assert load_model(learned.path / "model.safetensors").sha256 == learned.model.sha256
    assert not (learned.path / "confidence.safetensors").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_was_learned_is_saved_too(tmp_path):
    model = trained("gaussian", tmp_path).model
    shown = random_rows(model, 3)
    learned = model.learn(examples={"new": shown})
    learned.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.scores(shown), learned.scores(shown))
    assert loaded.space.undescribed.tolist() == learned.space.undescribed.tolist()
    further = {"newer": shown + 0.5}
    np.testing.assert_array_equal(
        loaded.learn(examples=further).scores(shown), learned.learn(examples=further).scores(shown)
    )


@pytest.fixture(scope="module")
def samples():
    expected = json.loads((KEPT / "expected.json").read_text())
    return np.array(expected["samples"], dtype=np.float32), expected


def near(scores, expected):
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


def test_a_classifier_of_7fa15d9_loads(samples, tmp_path):
    rows, expected = samples
    wanted = expected["classifier"]
    classifier = ZeroShotClassifier.load(KEPT / "classifier.safetensors")
    assert classifier.classes_.tolist() == wanted["classes"]
    assert classifier.predict(rows).tolist() == wanted["names"]
    near(classifier.scores(rows), wanted["scores"])
    model = load_model(KEPT / "classifier.safetensors")
    assert [row[0].name for row in model.rank(rows, top=1)] == wanted["names"]
    near(model.scores(rows), wanted["scores"])
    classifier.save(tmp_path / "new")
    near(ZeroShotClassifier.load(tmp_path / "new").scores(rows), wanted["scores"])


@pytest.mark.parametrize("name", ["closed", "trained"])
def test_a_run_of_7fa15d9_loads(name, samples):
    rows, expected = samples
    names = [[item[0] for item in row] for row in expected[name]]
    scores = [[item[1] for item in row] for row in expected[name]]
    done = load_run(KEPT / name)
    for ranking in (done.predict(rows), load_model(KEPT / name).rank(rows)):
        assert [[item.name for item in row] for row in ranking] == names
        near([[item.score for item in row] for row in ranking], scores)


OLDER = {"name": "fedzsl", "scale": 1.0, "kl": 0.5}


@pytest.mark.parametrize(
    ("section", "given", "left"),
    [
        ("method", OLDER, {"name": "fedzsl", "kl": 0.5}),
        ("method", OLDER | {"scale": 2.0}, OLDER | {"scale": 2.0}),
        ("method", {"name": "svip", "scale": 1.0}, {"name": "svip", "scale": 1.0}),
        ("encoder", {"name": "gru", "hidden": 128}, {"name": "gru"}),
        ("run", {"seed": 3}, {"seed": 3}),
    ],
)
def test_a_removed_setting_is_left_out_where_it_says_what_holds(section, given, left):
    assert without_removed(section, given) == left


def test_a_run_of_another_value_of_a_removed_setting_is_refused(tmp_path):
    shutil.copytree(KEPT / "closed", tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest["experiment"]["strategy"]["update_scale"] = 2.0
    path.write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(ExperimentError, match=r"^strategy: unknown key 'update_scale'"):
        load_model(tmp_path / "run")


@pytest.mark.slow
def test_no_setting_that_was_removed_is_still_there():
    """Of the sections that are there: each folder beside the core may be deleted."""
    for section in REMOVED.keys() & choosable().keys():
        for key, value in REMOVED[section].items():
            for name in value if isinstance(value, dict) else names(section):
                assert key not in find(section, name).Settings.model_fields


@pytest.fixture
def small(tmp_path):
    """Write the file of a small model, and return its path, its table and its tensors."""
    path = tmp_path / "model.safetensors"
    load_model(KEPT / "classifier.safetensors").save(path)
    with safe_open(path, "pt") as file:
        content = json.loads(file.metadata()["fedunseen model"])
    return path, content, load_file(path)


def write(path, content, tensors):
    save_file(tensors, path, {"fedunseen model": json.dumps(content)})


CHANGES = {
    "another format": lambda content, tensors: content.update(format="one"),
    "no format": lambda content, tensors: content.pop("format"),
    "no classes": lambda content, tensors: content.pop("classes"),
    "a class less": lambda content, tensors: content["classes"]["names"].pop(),
    "a class twice": lambda content, tensors: content["classes"]["names"].__setitem__(0, "tiger"),
    "an unknown method": lambda content, tensors: content["method"].update(name="telepathy"),
    "an unknown setting": lambda content, tensors: content["method"].update(depth=3),
    "a setting of another type": lambda content, tensors: content["method"].update(prior=[3]),
    "another width": lambda content, tensors: content["backbone"].update(input_shape=[7]),
    "no width": lambda content, tensors: content["backbone"].update(input_shape=[]),
    "an infinite offset": lambda content, tensors: content["calibration"].update(offset=1e999),
    "a text as offset": lambda content, tensors: content["calibration"].update(offset="much"),
    "a list as calibration": lambda content, tensors: content.update(calibration=[1]),
    "an unknown scaling": lambda content, tensors: content["scaling"].update(features=["cube"]),
    "many scalings": lambda content, tensors: content["scaling"].update(semantics=["l2"] * 10**5),
    "a text of scalings": lambda content, tensors: content["scaling"].update(semantics="A" * 10**5),
    "a seen class that is not there": lambda content, tensors: content["classes"].update(seen=[99]),
    "a class beyond 64 bits": lambda content, tensors: content["classes"].update(seen=[10**30]),
    "a sample of 4 TiB": lambda content, tensors: content["backbone"].update(input_shape=[2**40]),
    "a sample of 4 GB": lambda content, tensors: content["backbone"].update(input_shape=[10**9]),
    "infinite bits": lambda content, tensors: tensors["scaling/quantize.bits"].fill_(math.inf),
    "no semantics": lambda content, tensors: tensors.pop("semantics"),
    "no parameters": lambda content, tensors: [
        tensors.pop(name) for name in list(tensors) if name.startswith("params/")
    ],
    "NaN in a parameter": lambda content, tensors: tensors["params/weight"].fill_(float("nan")),
    "no parameter to learn classes with": lambda content, tensors: tensors.pop("params/count"),
    "no parameter to explain with": lambda content, tensors: tensors.pop("params/precision"),
    "a parameter of fewer classes": lambda content, tensors: tensors.update(
        {"params/described": tensors["params/described"][1:].clone()}
    ),
    "parameters of fewer features": lambda content, tensors: tensors.update(
        {"params/weight": tensors["params/weight"][:, 1:].clone()}
    ),
}


def refused(path, code):
    with pytest.raises((DataError, ExperimentError)) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert ": " in message
    assert caught.value.code == code
    return message


@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_file_is_refused(name, small):
    path, content, tensors = small
    write(path, content, tensors)
    load_model(path)  # it is the change that is refused
    CHANGES[name](content, tensors)
    write(path, content, tensors)
    unknown_method = name == "an unknown method"
    refused(path, "experiment" if unknown_method else DAMAGED)


def test_a_run_without_a_parameter_of_its_model_is_refused_where_it_is_read(tmp_path):
    file = shutil.copytree(KEPT / "closed", tmp_path / "run") / "model.safetensors"
    tensors = load_file(file)
    del tensors["count"]
    save_file(tensors, file)
    with pytest.raises(DataError, match="the model's parameter 'count' is missing, where its"):
        load_model(tmp_path / "run")


def test_a_file_of_a_later_version_is_refused(small):
    path, content, tensors = small
    write(path, {**content, "format": 2}, tensors)
    assert refused(path, NEWER).endswith("this one reads 1: update FedUnseen")


def test_what_is_no_model_is_refused(small, tmp_path):
    path, _, tensors = small
    whole = path.read_bytes()
    for part in (b"", b"nothing", whole[:100], whole[:-1], b"PK\x03\x04" + whole):
        path.write_bytes(part)
        refused(path, DAMAGED)
    save_file(tensors, path)
    assert (
        refused(path, DAMAGED)
        == f"{path} is not the file of a model: give a file that `save` wrote"
    )
    refused(tmp_path / "absent", DAMAGED)
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        load_model(tmp_path)
    with pytest.raises(DataError, match="is a folder"):
        Model.load(tmp_path)
    with pytest.raises(DataError, match="this model needs no files of one"):
        load_model(KEPT / "classifier.safetensors", encoder="weights")


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe or a device"):
        load_model(tmp_path / "pipe")


def test_a_model_without_a_classifier_is_no_classifier(small):
    path, _, _ = small
    with pytest.raises(DataError, match="holds a model without a classifier") as caught:
        ZeroShotClassifier.load(path)
    assert caught.value.code == DAMAGED


def test_a_write_that_fails_leaves_what_was_there(small, monkeypatch):
    path, _, _ = small
    before = path.read_bytes()
    model = load_model(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def test_each_clients_own_model_is_saved_alone(tmp_path):
    settings = {**DIGITS, "strategy.name": "local"}
    done = run(Experiment.load("digit-pairs", settings), tmp_path / "run")
    with pytest.raises(ExperimentError, match="every client keeps its own model"):
        load_model(tmp_path / "run")
    model = done.of_client(1).model
    model.save(tmp_path / "model")
    rows = random_rows(model)
    np.testing.assert_array_equal(load_model(tmp_path / "model").scores(rows), model.scores(rows))


def test_the_package_names_them_without_importing_torch():
    code = "import fedunseen, sys; assert 'load_model' in dir(fedunseen); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_the_calibration_takes_arrays_and_tensors(small):
    model = load_model(small[0])
    scores = np.arange(16.0).reshape(2, 8)
    calibrated = model.calibration(scores, model.seen_mask)
    offsets = model.calibration.offset * model.seen_mask
    assert offsets.any()
    np.testing.assert_allclose(scores - calibrated, [offsets, offsets])
    seen = torch.from_numpy(model.seen_mask).double()
    same = model.calibration(torch.from_numpy(scores), seen)
    np.testing.assert_array_equal(same.numpy(), calibrated)
