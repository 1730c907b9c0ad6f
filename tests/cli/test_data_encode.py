"""``fedunseen data encode``: files in the xlsa17 layout say what the benchmark says, and runs on them end alike."""

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from fedunseen.experiment.assemble import load_data
from fedunseen.tools.encode import encode
from published_layouts import write_image

SMALL = {"data.train_per_class": 10, "data.test_per_class": 4, "evaluation.selection": "last"}


def test_what_is_written_is_what_the_benchmark_holds(tmp_path):
    experiment = Experiment.load("digit-pairs-gaussian", SMALL)
    result = encode(experiment, tmp_path / "pairs")
    whole = load_data(experiment, 0)
    assert result["samples"] == len(whole.features)
    settings = Xlsa17.Settings(**{**result["data"], "attributes": "original_att"})
    read = Xlsa17.load(settings, seed=3)
    np.testing.assert_array_equal(read.features, whole.features.astype(np.float32))
    assert read.labels.tolist() == whole.labels.tolist()
    for split in ("train", "test_seen", "test_unseen"):
        assert getattr(read, split).tolist() == getattr(whole, split).tolist()
    assert read.space.names == whole.space.names
    for split in ("seen", "validation", "unseen"):
        assert getattr(read.space, split).tolist() == getattr(whole.space, split).tolist()
    np.testing.assert_allclose(read.space.semantics, whole.space.semantics, atol=1e-12)
    assert read.space.attribute_groups == whole.space.attribute_groups
    unit = Xlsa17.load(Xlsa17.Settings(**result["data"]), seed=3).space.semantics
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1)


@pytest.mark.slow
def test_a_run_on_the_files_ends_as_one_on_the_benchmark(tmp_path):
    exact = {"data.quantization": "none"}  # the bounds of gray values are known to the benchmark, not to its files
    experiment = Experiment.load("digit-pairs-gaussian", {**SMALL, **exact})
    data = encode(experiment, tmp_path / "pairs")["data"]
    keys = {f"data.{key}": value for key, value in data.items()} | exact
    again = Experiment.load(
        "digit-pairs-gaussian", {**keys, "data.attributes": "original_att", "evaluation.selection": "last"}
    )
    first, second = run(experiment, tmp_path / "first").result, run(again, tmp_path / "second").result
    assert second["zsl"] == pytest.approx(first["zsl"], abs=1e-6)
    assert second["gzsl_harmonic"] == pytest.approx(first["gzsl_harmonic"], abs=1e-6)


@pytest.mark.slow
def test_pictures_become_an_encoders_features(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    for c, name in enumerate(["cat", "dog", "owl"]):
        for i in range(3):
            write_image(tmp_path / "data" / name / f"{i}.png", 10 * c + i, (24, 24))
    (tmp_path / "data" / "classes.csv").write_text(
        "name,split,legs,wings\ncat,seen,4,0\ndog,seen,4,1\nowl,unseen,2,2\n"
    )
    settings = {
        "data.name": "images", "data.root": str(tmp_path / "data"), "data.size": 24, "method.name": "gaussian",
        "encoder.name": "efficientnet-lite", "evaluation.selection": "last",
    }  # fmt: skip
    experiment = Experiment.from_dict({}, settings, "photos")
    result = encode(experiment, tmp_path / "features")
    assert result["numbers"] == 1280
    read = Xlsa17.load(Xlsa17.Settings(**result["data"]), seed=0)
    np.testing.assert_array_equal(read.features, load_data(experiment, 0).features)


def test_the_command_says_the_section_that_uses_it(command, tmp_path):
    few = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    done = command("data", "encode", "digit-pairs-gaussian", *few, "--out", tmp_path / "pairs")
    assert 'name = "xlsa17"' in done.out, done.err
