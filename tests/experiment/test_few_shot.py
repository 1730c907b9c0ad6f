"""Few-shot runs from end to end, on scikit-learn's digits with a network small enough for
seconds.
"""

from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch
from PIL import Image
from sklearn.datasets import load_digits

from fedunseen import Experiment, run
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.federation.run_directory import load_params
from known_names import DIGITS_MAML
from refusals import message_of
from same import same
from small_runs import experiment

small = partial(experiment, DIGITS_MAML)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run(small(), tmp_path_factory.mktemp("few-shot") / "run")


def test_a_run_reports_accuracy_with_its_interval_and_baselines(done):
    result = done.result
    assert (result["test_episodes"], result["selected_round"]) == (20, 3)
    assert all(
        0 <= result[name] <= 100 for name in ("few_shot", "few_shot_base", "few_shot_random")
    )
    assert (
        60 < result["few_shot_pixels"] <= 100
    )  # 72.0 on 600 episodes of 15 queries, measured elsewhere
    deviation = result["few_shot_episode_sd"] / 20**0.5
    assert (
        1.96 * deviation * 0.99
        < result["few_shot_ci95"]
        < scipy.stats.t.ppf(0.975, 19) * deviation * 1.01
    )
    assert 0 < result["few_shot_ci95"] < 10
    assert result["few_shot"] < result["few_shot_episode_max"] <= 100
    assert result.keys().isdisjoint(("zsl", "mi_share"))
    assert [line["episodes_of"] for line in done.metrics] == ["test"] * 3
    assert (
        result["few_shot_test"] == done.metrics[2]["few_shot"]
    )  # the watched episodes are the first test episodes


@pytest.mark.slow
def test_the_share_of_mutual_information_is_told(tmp_path):
    """From the second local step on: before the first, a client's model is the merged one, its
    peer.
    """
    shares = {"method__name": "maml-mi", "method__mi": 2.0, "method__mi_from": 3}
    done = run(small(**shares, strategy__local_epochs=2), tmp_path / "run")
    losses = [line["losses"] for line in done.metrics]
    expected = 100 * 2.0 * losses[2]["mi"] / sum(one["loss"] for one in losses)
    assert 0 < done.result["mi_share"] == pytest.approx(expected)


@pytest.mark.slow
def test_the_newcomers_preset_learns_more_than_raw_pixels_know(tmp_path):
    """In three rounds of its fifteen; the pixels have 83 %."""
    quick = {
        "strategy.rounds": 3,
        "evaluation.selection": "last",
        "evaluation.episodes": 60,
        "run.device": "cpu",
    }
    result = run(Experiment.load("digit-pairs-few-shot", quick), tmp_path / "run").result
    assert result["few_shot"] > max(result["few_shot_pixels"], result["few_shot_random"]) + 3


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["f.*", "head.*"])
def test_clients_may_keep_body_or_head(done, tmp_path, shared):
    own = run(small(strategy__shared=[shared]), tmp_path / "run")
    names = load_params(own.path / "model.safetensors")
    assert {name.split("/")[1] for name in names} == {"0", "1"}
    apart = {
        name
        for name in done.params
        if not torch.equal(names[f"client/0/{name}"], names[f"client/1/{name}"])
    }
    assert {name.startswith(shared[:-1]) for name in apart} == {False}
    assert (
        own.result["few_shot_random"] == done.result["few_shot_random"]
    )  # all begin as the merged ones do


def test_clients_that_can_make_no_episode_and_novel_classes_with_too_few_samples_are_one_sentence(
    tmp_path,
):
    with pytest.raises(
        ExperimentError, match=r"no client can make an episode \(client 0: 6-way episodes need"
    ):
        run(small(method__ways=6, method__rotations=False), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(
        DataError, match="digits, test classes: 6-way episodes need 6 classes with at least 6"
    ):
        run(small(method__ways=6, method__rotations=True), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "parts", "sent"),
    [
        ({"strategy__name": "centralised", "strategy__rounds": 1}, 0, False),
        ({"strategy__name": "local"}, 2, False),
        ({"strategy__name": "local", "method__name": "maml-mi"}, 2, False),
        ({"strategy__name": "local", "method__name": "maml-mi-adv"}, 2, False),
        (
            {
                "strategy__name": "scaffold",
                "method__optimiser": "sgd",
                "method__name": "maml-mi-adv",
            },
            0,
            True,
        ),
        ({"defence__name": "median", "partition__clients": 4, "strategy__rounds": 1}, 0, True),
    ],
)
def test_every_combination_is_measured(options, parts, sent, tmp_path):
    result = run(small(**options), tmp_path / "run").result
    names = load_params(tmp_path / "run" / "model.safetensors")
    assert len({name.split("/")[1] for name in names if "/" in name}) == parts
    assert not any("second" in name for name in names)  # the second classifier is a client's own
    assert 0 <= result["few_shot"] <= 100
    assert (result["bytes_up"] > 0) == sent


@pytest.mark.slow
def test_several_seeds_have_an_interval_over_seeds(tmp_path):
    """Of two values the t interval is 12.706 sd / sqrt(2)."""
    both = run(small(run__seeds=2, strategy__rounds=1), tmp_path / "seeds")
    each = [one.result["few_shot"] for one in both.seeds]
    assert both.result["few_shot"] == pytest.approx(np.mean(each))
    assert both.result["few_shot_ci95"] == pytest.approx(
        12.706 * np.std(each, ddof=1) / 2**0.5, rel=1e-3
    )


@pytest.mark.slow
def test_the_plane_of_two_features_is_kept(tmp_path):
    run(small(encoder__outputs=2, strategy__rounds=1), tmp_path / "plane")
    plane = {
        n: v.numpy()
        for n, v in load_params(tmp_path / "plane" / "plane" / "round-1.safetensors").items()
    }
    assert sorted(plane["classes"].tolist()) == [5, 6, 7, 8, 9]
    assert plane["points"].shape == (len(plane["labels"]), 2)
    assert 0 <= plane["grid"].min() <= plane["grid"].max() <= 4
    # The answer at a sample is that of the nearest cell but near a boundary.
    place = np.round(
        (plane["points"] - plane["low"]) / (plane["high"] - plane["low"]) * (len(plane["grid"]) - 1)
    )
    answered = plane["classes"][plane["grid"][place[:, 1].astype(int), place[:, 0].astype(int)]]
    assert 100 * (answered == plane["labels"]).mean() == pytest.approx(
        float(plane["accuracy"]), abs=5
    )


def test_clients_that_cannot_take_part_are_left_out_and_named(tmp_path):
    """Of ten Dirichlet clients some hold too little: they say so, and the others continue."""
    options = {
        "partition__kind": "dirichlet",
        "partition__alpha": 0.2,
        "partition__clients": 10,
        "method__ways": 3,
    }
    with pytest.warns(
        match=r"clients are left out \(client.*3-way episodes need 3 classes"
    ) as caught:
        result = run(
            small(**options, method__rotations=False, strategy__rounds=1), tmp_path / "run"
        )
    left_out = next(
        int(text.split()[0]) for one in caught if "left out" in (text := str(one.message))
    )
    assert 0 < left_out < 10
    assert len(result.metrics[0]["participants"]) == 10 - left_out


@pytest.fixture
def examples(tmp_path):
    """Give a folder with a folder of pictures for each of 5 digits, and a picture to recognize."""
    digits = load_digits()
    pictures = (digits.images / 16 * 255).astype(np.uint8)
    for c in range(5, 10):
        folder = tmp_path / "support" / f"digit {c}"
        folder.mkdir(parents=True)
        for k, picture in enumerate(pictures[digits.target == c][: 3 if c == 5 else 2]):
            Image.fromarray(picture).save(folder / f"{k}.png")
    Image.fromarray(pictures[digits.target == 7][9]).save(tmp_path / "seven.png")
    return tmp_path / "support", tmp_path / "seven.png"


def test_new_classes_are_learnt_from_a_folder_of_examples(done, examples):
    support, picture = examples
    (ranking,) = done.predict(picture, support=support)
    assert sorted(one.name for one in ranking) == [f"digit {c}" for c in range(5, 10)]
    assert [one.score for one in ranking] == sorted((one.score for one in ranking), reverse=True)
    two = {name: [support / f"digit {c}" / "0.png"] for name, c in (("a", 7), ("b", 8))}
    ((best,),) = done.predict(picture, top=1, support=two)
    assert best.name in two


def test_wrong_examples_are_one_sentence(done, examples, tmp_path):
    support, picture = examples
    for c in "xyz":
        (support / c).mkdir()
    six = {str(k): [picture] for k in range(6)}
    for given, sentence in (
        (support, r"x is empty: put at least one example of the class there$"),
        (
            tmp_path / "nowhere",
            r"is not a folder: give one with a folder of examples for each class$",
        ),
        ({"one": [picture]}, r"^the examples are of 1 classes: give some of at least two$"),
        (six, r"^this run's model separates 5 classes, and there are examples of 6: give fewer"),
    ):
        with pytest.raises(DataError, match=sentence):
            done.predict(picture, support=given)
    with pytest.raises(
        ExperimentError, match=r"learns classes from examples: give a folder .* --support FOLDER$"
    ):
        done.predict(picture)


def test_sets_and_alarms_are_refused_by_name(done):
    rows = np.zeros((1, *done.model.method.backbone.input_shape), dtype=np.float32)
    for call in (done.model.predict_set, done.model.unfamiliar):
        with pytest.raises(
            ExperimentError, match=r"^method.name = 'maml' has no calibrated"
        ) as why:
            call(rows)
        assert why.value.code == "not-calibrated"
    with pytest.raises(ExperimentError, match="scores classes from examples alone"):
        done.model.probabilities(rows)


@pytest.mark.slow
def test_tests_leave_the_model_alone(tmp_path):
    few, many = (run(small(evaluation__validation_episodes=n), tmp_path / str(n)) for n in (2, 20))
    assert same(few, many)


def test_one_picture_is_a_batch_too(examples, tmp_path):
    support, picture = examples
    done = run(
        small(encoder__name="conv4", encoder__norm="batch-statistics", strategy__rounds=1),
        tmp_path / "run",
    )
    (ranking,) = done.predict(picture, support=support)
    assert all(np.isfinite(one.score) for one in ranking)
    assert same(done, done.params)


@pytest.mark.slow
def test_fixed_answers_go_by_their_names(tmp_path):
    """Tweets: whatever the order of the examples, negative is negative; other names are refused."""
    (tmp_path / "vectors.txt").write_text("bad 1.0 0.0\ngood 0.0 1.0\nday 0.3 0.3\n")
    rows = [
        f'"{4 * (i % 2)}","{i}","now","none","user{i // 2}","a {("bad", "good")[i % 2]} day"'
        for i in range(120)
    ]
    (tmp_path / "tweets.csv").write_text("\n".join(rows) + "\n")
    options = {
        "data.root": str(tmp_path / "tweets.csv"), "data.vectors": str(tmp_path / "vectors.txt"),
        "method.name": "maml", "method.queries": 2, "strategy.rounds": 1, "partition.clients": 2,
        "evaluation.episodes": 4, "evaluation.validation_episodes": 2,
    }  # fmt: skip
    done = run(Experiment.load("sent140-maml-mi-adv", options), tmp_path / "run")
    bad, good, three = (tmp_path / f"{name}.txt" for name in ("bad", "good", "three"))
    for file, text in (
        (bad, "bad day\n"),
        (good, "good day\n"),
        (three, "bad day\n \ngood day\n\n"),
    ):
        file.write_text(text)
    support, reverse = (
        {"negative": [bad], "positive": [good]},
        {"positive": [good], "negative": [bad]},
    )
    assert done.predict(bad, support=support) == done.predict(bad, support=reverse)
    said = message_of(done.predict, three, support=support)
    assert said.endswith(
        "three.txt: a line between tweets is empty: leave it out, so that every line is a tweet"
    )
    said = message_of(done.predict, bad, support={"sad": [bad], "happy": [good]})
    assert "this run's answers are always negative, positive, and there are examples" in said
