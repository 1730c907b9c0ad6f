"""A run directory of a coordinator whose scaling makes the sums that a party writes for it those of
one sample.

A party that joins refuses these scalings, and so does one that answers by file.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner

from fedunseen import Experiment, load_run, run
from fedunseen.cli.main import app
from fedunseen.core.errors import FedUnseenError
from fedunseen.deploy.remote.refusals import code_of
from fedunseen.experiment.changed import write_class_sums
from fedunseen.experiment.forget import write_removal
from fedunseen.methods.closed_form.statistics import unpacked
from same import write_again
from small_federation import write_all, write_party

EACH, LEVELS = 24, 127


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = write_all(tmp_path_factory.mktemp("stored"))
    write_party(folder / "large", np.repeat(range(3), EACH), 5)
    return folder


@pytest.fixture
def stored(place, tmp_path):
    """Return a function that makes a run directory, with other settings or tensors of scaling."""

    def make(settings=None, tensors=None, method="gaussian"):
        tree = {
            "data": {"name": "folder", "root": str(place / "coordinator")},
            "method": {"name": method},
            "strategy": {"name": "fedavg", "rounds": 1},
        }
        small = {
            "partition.clients": 2, "evaluation.selection": "last", "evaluation.theory": False,
            "run.device": "cpu",
        }  # fmt: skip
        out = tmp_path / "run"
        run(Experiment.from_dict(tree, small | (settings or {})), out)
        scaling = {f"scaling/{name}": value for name, value in (tensors or {}).items()}
        write_again(out / "model.safetensors", scaling)
        return load_run(out)

    return make


def write(way, stored_run, folder, out, min_samples):
    """Write the sums of all samples of the party."""
    if way == "removal":
        write_removal(stored_run, folder, out, (), False, min_samples)
    else:
        write_class_sums(stored_run, folder, out, min_samples)
    return {name.removeprefix("sums/"): value for name, value in load_file(out).items()}


WAYS = ("removal", "class sums")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_narrow_range_shows_no_feature_of_one_sample(way, min_samples, stored, place, tmp_path):
    arrays = np.load(place / "large" / "features.npz")
    rows = arrays["features"][arrays["labels"] == "class 0"].astype(np.float64)
    values = np.sort((rows / np.linalg.norm(rows, axis=1, keepdims=True))[:, 0])
    half = min(values[3] - values[2], values[2] - values[1]) / 2  # no other is in the range
    step, offset = np.ones((2, rows.shape[1]), np.float32)
    step[0], offset[:] = half / LEVELS, 0
    offset[0] = values[2] - half / 3
    tensors = {"quantize.step": step, "quantize.offset": offset}
    chosen = stored({"data.features": ["l2"]}, tensors)
    total = write(way, chosen, place / "large", tmp_path / "sums", min_samples)["total"][0, 0]
    beyond = LEVELS * (EACH - 3 - 2)  # all above the range, less those below it
    if way == "removal":
        total = total * float(step[0])
    shown = float(offset[0]) + total - beyond * float(step[0])
    if min_samples == 1:  # the positive control
        assert abs(shown - values[2]) <= step[0]
    else:  # few below the range count as above
        assert abs(total - EACH * LEVELS * float(step[0])) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"data.features": ["standard", "kernel"]}, "they are random features of a kernel"),
        ({"data.features": ["standard", "l2"]}, "l2 is neither first nor after one centre"),
        (
            {"data.features": ["centre"], "data.quantization": "none"},
            "features are not rounded",
        ),
        ({"data.features": ["standard"], "method.clip_norm": 30.0}, "clip_norm = 30 can make"),
    ],
)
def test_scalings_that_show_one_sample_need_the_owner(way, settings, why, stored, place, tmp_path):
    chosen = stored(settings)
    if way == "class sums" or "rounded" not in why:  # nothing is subtracted from float64 sums
        write(way, chosen, place / "large", tmp_path / "consented", 1)
    if way == "class sums" and "clip_norm" in why:  # these are not shortened
        write(way, chosen, place / "large", tmp_path / "sums", 5)
        return
    with pytest.raises(FedUnseenError, match=why) as refused:
        write(way, chosen, place / "large", tmp_path / "sums", 5)
    assert refused.value.code == "refused-settings"
    assert not (tmp_path / "sums").exists()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("0.mean", np.float32(1e30), "out-of-bounds"),
        ("0.mean", np.float32(np.nan), "model-file"),  # when it is read
        ("quantize.step", np.float32(1e-30), "out-of-bounds"),
        ("quantize.step", np.float64(1), "malformed"),
        ("1.mean", np.float32(0), None),
        ("else", np.float32(0), "malformed"),
    ],
)
def test_scalings_out_of_bounds_are_refused(way, name, value, code, stored, place, tmp_path):
    chosen = stored({"data.features": ["centre"]}, {name: np.full(8, value)})
    if code is None:
        write(way, chosen, place / "large", tmp_path / "sums", 5)
        return
    with pytest.raises(FedUnseenError) as refused:
        write(way, chosen, place / "large", tmp_path / "sums", 5)
    assert refused.value.code == code
    assert not (tmp_path / "sums").exists()


@pytest.mark.slow
def test_a_run_directory_neither_lowers_the_batch_nor_claims_to_be_of_one_process(
    stored, place, tmp_path
):
    chosen = stored({"method.removal_batch": 1})
    words = [
        "sums",
        str(chosen.path),
        "--data",
        str(place / "large"),
        "--removal",
        "--samples",
        "3",
    ]
    with pytest.raises(FedUnseenError, match="remove at least 20 at once"):
        write_removal(chosen, place / "large", tmp_path / "sums", [3], False, 5)
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "sums")])
    assert "give --min-samples 1 if the owner agrees" in str(result.exception)
    assert not (tmp_path / "sums").exists()
    result = CliRunner().invoke(
        app, [*words, "--out", str(tmp_path / "sums"), "--min-samples", "1"]
    )
    assert (tmp_path / "sums").exists(), result.output


@pytest.mark.slow
def test_a_removal_of_a_trained_run_is_refused(stored, place, tmp_path):
    chosen = stored({"method.kl": 0.0}, method="fedzsl")
    with pytest.raises(FedUnseenError, match="is trained, so that single samples"):
        write_removal(chosen, place / "large", tmp_path / "sums", (), False, 5)


def test_a_run_that_has_released_noisy_sums_takes_no_exact_removal(stored, place, tmp_path):
    """Its settings are the coordinator's word, and noise is in no file of a removal."""
    chosen = stored()
    manifest = json.loads((chosen.path / "manifest.json").read_text())
    manifest["experiment"]["privacy"] = {
        "name": "sample-level", "clip": 1.0, "epsilon": 1.0, "noise_from": "system"
    }  # fmt: skip
    (chosen.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FedUnseenError, match="has released noisy sums"):
        write_removal(load_run(chosen.path), place / "large", tmp_path / "sums", (), False, 5)


def rows_of(place):
    """Return the samples of the party and their classes."""
    arrays = np.load(place / "large" / "features.npz")
    return arrays["features"], arrays["labels"]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("min_samples", [1, 5])
def test_counts_do_not_show_whether_a_sample_is_near_the_mean(
    way, min_samples, stored, place, tmp_path
):
    """The attack: two run directories, and the mean of one of them lies at a known sample."""
    features, _ = rows_of(place)
    candidate = features[3]
    written = []
    for number, mean in enumerate((candidate, candidate + 9)):
        chosen = stored({"data.features": ["centre", "l2"]}, {"0.mean": mean})
        shutil.copytree(chosen.path, tmp_path / f"run {number}")
        shutil.rmtree(chosen.path)
        chosen = load_run(tmp_path / f"run {number}")
        out = tmp_path / f"sums {number}"
        written.append(write(way, chosen, place / "large", out, min_samples))
    assert written[0]["count"].tolist() == written[1]["count"].tolist()
    if way == "removal":  # which has whole numbers
        squares = [torch.from_numpy(sums["square"]) for sums in written]
        at, away = (float(unpacked(square, features.shape[1]).trace()) for square in squares)
        missing = (1 - at / away) * len(features)  # rounding changes lengths a little
        assert 0.8 < missing < 1.5 if min_samples == 1 else abs(missing) < 0.4


def test_a_sample_and_its_stand_in_are_removed_together(stored, place, tmp_path):
    features, labels = rows_of(place)
    chosen = stored(
        {"data.features": ["centre", "l2"], "method.removal_batch": 1}, {"0.mean": features[3]}
    )
    folder = place / "large"
    away = np.linalg.norm(features[labels == labels[3]] - features[3], axis=1)
    near = np.flatnonzero(away <= np.median(away) / 2)
    assert 3 in near
    with pytest.raises(FedUnseenError, match="stands in for sample") as refused:
        write_removal(chosen, folder, tmp_path / "out", near.tolist(), True, 5)
    pairs = str(refused.value).split("sample ")
    assert code_of(refused.value) == "refused-data"
    assert len(pairs) > 2
    assert write_removal(chosen, folder, tmp_path / "one", [3], True, 1) == 1
    everything = np.arange(EACH).tolist()  # of the class
    assert write_removal(chosen, folder, tmp_path / "all", everything, True, 5) == EACH


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_far_sample_is_no_farther_than_few_others(way, min_samples, stored, place, tmp_path):
    """A coarse step: of class 0, four samples are one unit up, and a far one 100 units."""
    arrays = dict(np.load(place / "large" / "features.npz"))
    arrays["features"][:, 0] = np.linspace(-0.2, 0.2, len(arrays["labels"]))
    arrays["features"][:5, 0] = [1, 1, 1, 1, 100]
    folder = shutil.copytree(place / "large", tmp_path / "far")
    np.savez(folder / "features.npz", **arrays)
    width = arrays["features"].shape[1]
    step = np.full(width, 6 / LEVELS, np.float32)
    step[0] = 1
    tensors = {"quantize.step": step, "quantize.offset": np.zeros(width, np.float32)}
    chosen = stored({"data.features": [], "data.bounds": [[-6, 6]]}, tensors)
    total = write(way, chosen, folder, tmp_path / "sums", min_samples)["total"][0, 0]
    assert total == (104 if min_samples == 1 else 5)
