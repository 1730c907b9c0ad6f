"""``data.unlabelled``: a run adapts to samples without a label, whoever holds them, killed or
not.
"""

import shutil

import numpy as np
import pytest
from sklearn.metrics import recall_score

from fedunseen import Experiment, load_run, run
from fedunseen.data.benchmarks.image_folder import ImageFolder
from fedunseen.experiment import stages
from fedunseen.experiment.init_template import suggest
from fedunseen.federation.run_directory import load_params
from same import same


def experiment(root, **settings):
    tree = {
        "data": {"name": "folder", "root": str(root), "unlabelled": True},
        "partition": {"kind": "pccd", "clients": 2},
        "method": {"name": "gaussian"},
        "evaluation": {"embedding": False},
    }
    return Experiment.from_dict(tree, settings)


@pytest.fixture
def folder(make_folder, with_pool, tmp_path):
    return make_folder(tmp_path / "mine", with_pool)


@pytest.mark.slow
def test_a_run_adapts_as_a_finished_run_does_whoever_holds_the_samples(folder, tmp_path):
    done = run(experiment(folder), tmp_path / "run")
    note = done.result["adapted"]
    assert (note["samples"], note["bytes_up"]) == (
        8 * 12 + 4 * 4,
        4 * (1 + 12 * (9 + 1)),
    )  # whole numbers of 32 bits
    plain = run(experiment(folder, **{"data.unlabelled": False}), tmp_path / "plain")
    assert "adapted" not in plain.result
    pool = np.load(folder / "features.npz")
    memory = plain.adapt(pool["features"][pool["labels"] == ""])
    assert same(done, memory.params)
    assert note["before"]["zsl"] == plain.result["zsl"]
    assert done.result["zsl"] == memory.result["zsl"] == load_run(done.path).result["zsl"]
    assert same(done, run(experiment(folder, **{"partition.clients": 4}), tmp_path / "four"))


@pytest.mark.slow
def test_an_adapted_run_says_what_its_own_offset_costs(folder, tmp_path):
    done = run(
        experiment(folder, **{"method.calibration": True, "evaluation.selection": "last"}),
        tmp_path / "run",
    )
    answers = {
        name: value.numpy()
        for name, value in load_params(tmp_path / "run" / "evaluation.safetensors").items()
    }
    seen = ~np.isin(answers["labels"], done.space.unseen)
    labels, plain = (answers[name][seen] for name in ("labels", "uncalibrated_answers"))
    recall = recall_score(labels, plain, labels=done.space.seen, average="macro")
    assert done.result["uncalibrated_gzsl_seen"] == pytest.approx(100 * recall)
    everywhere = recall_score(answers["labels"], answers["gzsl_answers"], average="macro")
    assert done.result["gzsl_accuracy"] == pytest.approx(100 * everywhere)


@pytest.mark.slow
def test_where_the_harmonic_mean_falls_the_run_from_before_is_kept(folder, tmp_path):
    before = run(experiment(folder, **{"data.unlabelled": False}), tmp_path / "before")
    arrays = np.load(folder / "features.npz")
    rows, pool = (arrays["features"][arrays["labels"] == name] for name in ("two words", ""))
    rows = np.repeat(rows, 6, axis=0)
    harm = (rows + np.random.default_rng(0).normal(scale=0.1, size=rows.shape)).astype(np.float32)
    with pytest.warns(
        UserWarning,
        match="lowered the harmonic mean .* Keep the run from before, without these samples",
    ):
        worse = before.adapt(harm, tmp_path / "worse")
    kept = load_run(tmp_path / "before")
    assert same(kept, before)
    assert (
        kept.result["gzsl_harmonic"]
        == before.result["gzsl_harmonic"]
        > worse.result["gzsl_harmonic"] + 1
    )
    assert kept.adapt(pool).result["gzsl_harmonic"] > before.result["gzsl_harmonic"] - 1


@pytest.mark.slow
def test_a_run_that_is_killed_after_adapting_is_adapted_once(folder, tmp_path, monkeypatch):
    done = run(experiment(folder), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(stages, "copy_weights", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(experiment(folder), tmp_path / "killed")
    again = run(experiment(folder), tmp_path / "killed", resume=True)
    assert same(done, again)
    assert again.result["adapted"] == done.result["adapted"]


@pytest.mark.slow
def test_init_and_the_loader_find_the_folder_of_unlabelled_pictures(photos, tmp_path):
    pictures = shutil.copytree(photos, tmp_path / "mine")
    shutil.copytree(photos / "red below", pictures / "unlabelled")
    found = suggest(pictures, tmp_path / "mine.toml")
    assert "unlabelled = true" in found.text
    assert any(choice.what == "14 unlabelled pictures" for choice in found.choices)
    settings = {"root": pictures, "size": 16, "resize": 16}
    loaded = ImageFolder.load(ImageFolder.Settings(**settings, unlabelled=True), 0)
    assert {loaded.files[i].split("/")[0] for i in loaded.unlabelled} == {"unlabelled"}
    assert (len(loaded.unlabelled), loaded.labels[loaded.unlabelled].max()) == (14, -1)
    without = ImageFolder.load(ImageFolder.Settings(**settings), 0)
    assert (len(without.unlabelled), len(without.labels)) == (0, 112)
    shutil.rmtree(pictures / "unlabelled")
    result = suggest(pictures, tmp_path / "mine.toml")
    assert "unlabelled" not in result.text
    assert any("no folder" in choice.what for choice in result.choices)


@pytest.mark.slow
def test_a_table_of_samples_has_unlabelled_ones_where_the_label_is_empty(tmp_path):
    rng, lines = np.random.default_rng(0), ["label,split,length,weight,speed"]
    for name in ("horse", "tiger", "cow", "otter", "wolf", "zebra"):
        rows = 5 * rng.normal(size=3) + rng.normal(size=(12, 3))
        labels = [name] * 8 + [""] * 4
        parts = ["test" if name == "zebra" or i < 2 else "train" for i in range(8)] + ["train"] * 4
        lines += [
            ",".join([a, b, *map(str, row)])
            for a, b, row in zip(labels, parts, rows.round(3), strict=True)
        ]
    (tmp_path / "animals.csv").write_text("\n".join(lines) + "\n", "utf-8")
    file = tmp_path / "animals.toml"
    file.write_text(suggest(tmp_path / "animals.csv", file).text, "utf-8")
    done = run(Experiment.load(file, {"evaluation.embedding": False}), tmp_path / "run")
    note, table = done.result["adapted"], done.result["adapted"]["classes"]
    assert note["samples"] == 24
    assert [name for name, seen in zip(table["class"], table["seen"], strict=True) if not seen] == [
        "zebra"
    ]
