"""Whole runs of generative methods: what they leave behind, and what they recognize."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.metrics import recall_score

from fedunseen import FedUnseenError, run
from fedunseen.federation.run_directory import RunDirectory, load_params
from fedunseen.methods.clswgan import CLSWGAN
from fedunseen.pages.report import write_report
from small_runs import LAST

SMALL = {
    "method.name": "clswgan", "method.hidden": 16, "method.output": "linear", "method.synthetic": 20,
    "method.head_epochs": 3, "method.batch_size": 8, "method.lr": 0.002,
    "strategy.shared": ["generator.*"], "strategy.rounds": 6,
}  # fmt: skip
LAST_ROUND = {**SMALL, **LAST}


@pytest.fixture(scope="module")
def generative(make, tmp_path_factory):
    return run(make(SMALL), tmp_path_factory.mktemp("generative") / "run")


@pytest.mark.slow
def test_it_says_what_travels_and_what_the_classifiers_learnt_from(generative):
    result, width, classes = generative.result, 9, len(generative.space.names)
    attributes = generative.space.attributes
    generator = (2 * attributes) * 16 + 16 + 16 * width + width
    critic = (width + attributes) * 16 + 16 + 16 + 1
    assert result["parameters"] == {
        "generator": generator,
        "critic": critic,
        "softmax": width * classes + classes,
    }
    assert (
        4 * result["parameters_shared"]
        == result["bytes_down"]
        == result["bytes_up"]
        == 4 * generator
    )
    assert result["gzsl_head"] == "synthetic features of all classes"
    assert (
        "clients" not in generative.metrics[0]
    )  # classifiers for every client's model only if asked for
    assert {name.split(".")[0] for name in generative.params} == {
        "generator",
        "zsl",
        "gzsl",
    }  # nothing private


def test_rounds_are_skipped_where_none_is_to_be_chosen(generative):
    """Classifiers take long: every fifth round is measured, beside the first, the chosen and the
    last.
    """
    assert all("zsl" in line for line in RunDirectory(generative.path / "selection").metrics())
    measured = {line["round"] for line in generative.metrics if "zsl" in line}
    assert measured == {1, generative.result["selected_round"], 5, 6} < set(range(1, 7))


@pytest.mark.slow
def test_alone_every_client_has_classifiers_of_its_own(make, tmp_path):
    alone = {**LAST_ROUND, "strategy.name": "local", "strategy.rounds": 1, "strategy.shared": ["*"]}
    done = run(make(alone), tmp_path / "run")
    stored = load_params(done.path / "model.safetensors")
    assert {name.split("/")[1] for name in stored} == {"0", "1", "2"}
    assert "client/2/zsl.weight" in stored
    assert (done.result["bytes_up"], done.result["parameters_shared"]) == (0, 0)


@pytest.mark.parametrize("which", ["generative", "finished"])
def test_the_accuracies_of_a_run_are_those_of_its_predictions(which, folder, request):
    done, arrays = request.getfixturevalue(which), np.load(folder / "features.npz")
    space, test = done.space, arrays["split"] == "test"
    labels = np.array(space.names)[arrays["labels"][test]]
    for name, group, among in (
        ("zsl", "unseen", "unseen"),
        ("gzsl_unseen", "unseen", "all"),
        ("gzsl_seen", "seen", "all"),
    ):
        answers = [
            ranking[0].name
            for ranking in done.predict(arrays["features"][test], among=among, top=1)
        ]
        recall = recall_score(
            labels, answers, labels=np.array(space.names)[getattr(space, group)], average="macro"
        )
        assert done.result[name] == pytest.approx(100 * recall)


def test_a_class_that_is_added_is_generated_too(generative):
    rows = np.random.default_rng(3).normal(size=(4, 9))
    added = {"new": generative.space.semantics[1].tolist()}
    for ranking in generative.predict(rows, added):
        assert len(ranking) == len(generative.space.names) + 1
        assert "new" in {one.name for one in ranking}
    for ranking in generative.predict(rows, added, among="given"):
        assert [one.name for one in ranking] == ["new"]
    assert generative.predict(rows, added, among="unseen") == generative.predict(
        rows, added, among="unseen"
    )


def test_the_report_has_generated_beside_real_features(generative):
    tensors = load_file(generative.path / "evaluation.safetensors")
    count = len(tensors["generated_labels"]) // 2
    assert np.array_equal(tensors["generated_labels"][:count], tensors["generated_labels"][count:])
    assert tensors["generated_kind"].tolist() == [0] * count + [1] * count
    assert tensors["generated_plane"].shape == (2 * count, 2)
    assert tensors["generated_accuracy"].shape == generative.space.unseen.shape
    assert tensors["generated_accuracy"].mean() == pytest.approx(generative.result["zsl"], abs=1e-4)
    assert "Generated and real features of unseen classes" in write_report(generative).read_text(
        "utf-8"
    )


@pytest.mark.slow
def test_a_changed_text_encoder_is_noticed_on_resume(make, tmp_path, cut_short):
    experiment = make({**LAST_ROUND, "strategy.rounds": 3})
    cut_short(experiment, tmp_path / "run", after=3)
    for path in (
        tmp_path / "run" / "checkpoints"
    ).iterdir():  # as if the encoder had given two numbers more
        tensors, name = load_file(path), "params/generator.0.weight"
        save_file(
            {**tensors, name: np.concatenate([tensors[name], tensors[name][:, :2]], axis=1)}, path
        )
    with pytest.raises(
        FedUnseenError, match=r"'generator.0.weight' has the shape .* now, but the checkpoint holds"
    ):
        run(experiment, tmp_path / "run", resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["clswgan", "vaegan", "free"])
def test_what_is_not_finite_stops_the_run_with_the_last_good_round(
    make, tmp_path, method, cut_short
):
    out, changed = tmp_path / "run", {**LAST_ROUND, "method.name": method, "strategy.shared": ["*"]}
    cut_short(make(changed), out, after=2)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["experiment"]["method"]["lr"] = 1e30
    (out / "manifest.json").write_text(json.dumps(manifest))
    before = (out / "checkpoints" / "000002.safetensors").read_bytes()
    with pytest.raises(
        FedUnseenError, match=r"training diverged: the update of client 0 in round 3 is not finite"
    ):
        run(make({**changed, "method.lr": 1e30}), out, resume=True)
    assert (out / "checkpoints" / "000002.safetensors").read_bytes() == before
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


def test_real_features_are_those_that_somebody_holds(make, tmp_path, monkeypatch):
    seen, whole = [], CLSWGAN.fit_heads
    monkeypatch.setattr(
        CLSWGAN, "fit_heads", lambda *given: seen.append(len(given[-1][1])) or whole(*given)
    )
    pooled = {
        **LAST_ROUND,
        "strategy.name": "centralised",
        "strategy.rounds": 1,
        "partition.rho": 0.3,
    }
    done = run(make(pooled), tmp_path / "run")
    held = load_file(done.path / "evaluation.safetensors")["client_counts"].sum()
    assert set(seen) == {held}  # predictions aside
    assert done.result["gzsl_head"] == "real seen and synthetic unseen features"
    assert (
        done.result["bytes_up"],
        done.result["bytes_down"],
        done.result["parameters_shared"],
    ) == (0, 0, 0)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="saw real samples of seen classes"):
        done.predict(np.zeros((1, 9)), {"new": done.space.semantics[1].tolist()})
