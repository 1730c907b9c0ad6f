"""Which features suit a table: the choice, its effect, and what a run advises."""

import numpy as np
import pytest
from sklearn import datasets
from sklearn.model_selection import train_test_split

from fedunseen import Benchmark, Experiment, ZeroShotClassifier, load_model, run
from fedunseen.core.errors import ExperimentError
from fedunseen.evaluation import diagnosis
from fedunseen.experiment.init_template import suggest
from fedunseen.experiment.suited_features import compared, suited_features

KERNEL = ("standard", "kernel")


def benchmark_of(rows, labels, table=None):
    names = [str(label) for label in labels]
    alone = dict(zip(sorted(set(names)), np.eye(len(set(names))), strict=True))
    return Benchmark.from_arrays(rows, names, table or alone)


def circles(samples=600):
    return datasets.make_circles(samples, noise=0.1, factor=0.5, random_state=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "suited"),
    [
        (circles, KERNEL),
        (lambda: datasets.make_moons(600, noise=0.15, random_state=0), KERNEL),
        (lambda: datasets.load_iris(return_X_y=True), ()),
        (lambda: datasets.load_wine(return_X_y=True), ("standard",)),
        (lambda: datasets.load_breast_cancer(return_X_y=True), ("standard",)),
    ],
)
def test_what_suits_a_table(load, suited):
    rows, labels = load()
    assert suited_features(benchmark_of(rows, labels))[0] == suited
    order = np.random.default_rng(0).permutation(len(rows))
    assert compared(benchmark_of(rows[order], labels[order])) == compared(
        benchmark_of(rows, labels)
    )


def test_features_of_networks_and_few_samples_are_not_compared():
    rows, labels = circles()
    wide = np.hstack([rows, np.random.default_rng(0).standard_normal((600, 300))])
    assert compared(benchmark_of(wide, labels)) is None
    assert compared(benchmark_of(rows[:11], labels[:11])) is None


@pytest.mark.slow
def test_a_kernel_that_recognizes_left_out_classes_worse_is_not_taken():
    """Classes on a line with bent samples: within them a kernel helps, beyond them it knows
    nothing.
    """
    rng = np.random.default_rng(0)
    places = np.arange(9)
    labels = np.repeat(places, 60)
    along = labels + rng.uniform(-0.5, 0.5, len(labels))
    other = rng.standard_normal(len(labels))
    bent = np.stack([2 * along + 4 * (labels % 2) * np.sign(other), 3 * other], axis=1)
    table = {str(c): [1.0 + c, c**2 / 9] for c in (*places, 10)}
    all_seen = compared(benchmark_of(bent, labels))
    described = compared(benchmark_of(bent, labels, table))
    assert all_seen.clear
    assert all_seen.curved > all_seen.linear
    assert described.curved < all_seen.curved  # left-out classes count


@pytest.mark.slow
def test_the_classifier_takes_a_kernel_where_boundaries_curve(tmp_path):
    rows, labels = circles()
    rows_of, asked, names, wanted = train_test_split(rows, labels, random_state=0)
    linear = ZeroShotClassifier(features=("standard",)).fit(rows_of, names)
    model = ZeroShotClassifier().fit(rows_of, names)
    assert linear.score(asked, wanted) < 0.6
    assert model.score(asked, wanted) > 0.95
    model.save(tmp_path / "circles.safetensors")
    loaded = ZeroShotClassifier.load(tmp_path / "circles.safetensors")
    assert np.array_equal(loaded.predict_proba(asked), model.predict_proba(asked))
    assert loaded.n_features_in_ == 2
    assert load_model(tmp_path / "circles.safetensors").sample_shape == (2,)


@pytest.mark.slow
def test_parties_have_the_same_features_and_one_can_be_removed():
    rows, labels = circles()
    groups = np.where(np.arange(600) % 3 == 0, "a", "b")
    both = ZeroShotClassifier(features=KERNEL).fit(rows, labels, groups=groups)
    alone = ZeroShotClassifier(features=KERNEL).fit(rows, labels)
    np.testing.assert_allclose(both.scores(rows), alone.scores(rows), rtol=1e-9)
    others = ZeroShotClassifier(features=KERNEL).fit(rows[groups == "b"], labels[groups == "b"])
    assert np.array_equal(both.forget("a").scores(rows), others.scores(rows))


@pytest.fixture
def folder(tmp_path):
    """Return a folder of a table whose boundaries curve."""
    rows, labels = circles(900)
    place = tmp_path / "rings"
    place.mkdir()
    names = np.array(["inner", "outer", "left", "right", "far"])
    side = np.arange(900) % 2
    moved = np.concatenate(
        [rows + side[:, None] * np.array([6.0, 0.0]), rows[:40] + np.array([12.0, 0.0])]
    )
    which = np.concatenate([labels + 2 * side, np.full(40, 4)])
    split = np.where(np.arange(940) % 5 == 4, "test", "train")
    split[900:] = "test"
    features = moved.astype(np.float32)
    np.savez(place / "features.npz", features=features, labels=names[which], split=split)
    (place / "classes.csv").write_text(
        "name,split,size,side\ninner,seen,1,1\nouter,seen,2,1\nleft,seen,1,2\nright,seen,2,2\n"
        "far,unseen,2,3\n"
    )
    return place


def settings_of(folder, **data):
    return {
        "data": {"name": "folder", "root": str(folder), **data},
        "partition": {"kind": "pccd", "clients": 2},
        "method": {"name": "gaussian"},
        "evaluation": {"prior": "auto", "embedding": False},
    }


@pytest.mark.slow
def test_a_run_advises_a_kernel_and_the_advice_holds(folder, tmp_path):
    plain = run(Experiment.from_dict(settings_of(folder)), tmp_path / "plain")
    found = plain.result["curved"]
    assert found["curved"] > found["linear"] + 10
    assert str(list(KERNEL)) in diagnosis.curved(plain.result).remedy
    data = {"features": list(KERNEL)}
    done = run(Experiment.from_dict(settings_of(folder, **data)), tmp_path / "kernel")
    assert "curved" not in done.result
    assert done.result["gzsl_seen"] > plain.result["gzsl_seen"] + 10
    again = run(Experiment.from_dict(settings_of(folder, **data)), tmp_path / "again")
    assert again.result["sums_sha256"] == done.result["sums_sha256"]
    other = settings_of(folder, **data) | {"partition": {"kind": "iid", "clients": 3}}
    apart = run(Experiment.from_dict(other), tmp_path / "apart")
    assert apart.result["sums_sha256"] == done.result["sums_sha256"]
    assert done.model.sample_shape == (2,)


@pytest.mark.slow
def test_init_chooses_a_kernel_for_a_table_whose_boundaries_curve(folder, tmp_path):
    suggestion = suggest(folder, tmp_path / "rings.toml")
    assert 'features = ["standard", "kernel"]' in suggestion.text
    assert any(choice.what == "boundaries between classes curve" for choice in suggestion.choices)
    (tmp_path / "rings.toml").write_text(suggestion.text, encoding="utf-8")
    done = run(Experiment.load(tmp_path / "rings.toml"), tmp_path / "run")
    assert done.result["gzsl_harmonic"] > 80  # drawn samples would ask for an offset that leaves 0


def test_trained_methods_take_no_kernel(folder):
    trained = {"method": {"name": "fedzsl"}, "strategy": {"name": "fedavg"}}
    with pytest.raises(ExperimentError) as error:
        Experiment.from_dict(settings_of(folder, features=list(KERNEL)) | trained)
    assert error.value.code == "kernel-of-trained"
